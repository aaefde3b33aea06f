// What is shown and selected, kept in the fragment of the URL.

import { effect, signal, type Signal } from "@preact/signals";
import type { Array64 } from "./data";

export interface Model {
  name: string;
  shape: "encoder-decoder" | "encoder" | "decoder";
  sizes: Record<string, number>;
  kinds: Record<string, string>; // of attention, with titles
  layers: Record<string, number>; // of each kind
  heads: Record<string, number>;
  grid: [number, number] | null; // patches of an image
  has_run: boolean; // whether the model belongs to a training run
  has_roles: boolean; // measured over a corpus
  has_logits: boolean;
  target: "Output" | "Unmasked text" | "Class" | null; // what a target of a text is
  classes: string[];
  generates: boolean; // text
  tables: string[]; // sides with embeddings of their own
  parameters: number;
  flops: Record<string, number>;
  tree: Component;
}

export interface Component {
  name: string;
  title: string;
  kind: string;
  tensors: Record<string, number[]>;
  parameters: number;
  flops: number;
  flops_per_key: number;
  children: Component[];
}

export interface Best {
  tokens: string[][] | string[][][];
  probabilities: Array64;
}

export interface Words {
  texts: string[];
  of_token: (number | null)[];
}

export interface Trace {
  side: "encoder" | "decoder"; // the one that predicts
  tokens: Record<string, string[]>;
  queries: Record<string, string[]>; // the names of the rows of each kind of attention
  words: Record<string, Words>;
  output: string | null;
  masks: number[];
  labels?: (string | null)[];
  loss?: Array64;
  top?: Best;
}

export const view = signal("attention");
export const text = signal("");
export const target = signal(""); // empty: the model's own output
export const other = signal(""); // a second text beside the first
export const kind = signal("");
export const layer = signal(0); // from 0; -1: the average
export const head = signal(0);
export const row = signal(-1); // a query token; -1: none
export const words = signal(false); // whole words instead of tokens
export const mode = signal("map"); // of attention: map or lines
export const component = signal(""); // of the architecture
export const side = signal(""); // of the walkthrough, and of the embeddings
export const role = signal(""); // of heads; empty: all
export const search = signal(""); // options, JSON
export const figure = signal("embeddings");
export const edits = signal(""); // JSON
export const lines = signal(""); // over which edits are measured
export const checkpoint = signal(-1); // from 0; -1: the last
export const validation = signal(-1);
export const discarded = signal(true); // tokens of a search
export const axis = signal(1); // the component from 0 that is vertical
export const token = signal(""); // whose neighbours are shown: an id, or a quotation mark and a text
export const theme = signal("auto");

const kept: Record<string, Signal<string> | Signal<number> | Signal<boolean>> = {
  view, text, target, other, kind, layer, head, row, words, mode, component, side, role, edits, search, figure, theme,
  lines, checkpoint, validation, discarded, axis, token,
};

/** Read the fragment; values that are absent or not valid keep their defaults. */
export function readFragment(): void {
  const given = new URLSearchParams(location.hash.slice(1));
  for (const [name, value] of given) {
    const found = kept[name];
    if (!found) continue;
    if (typeof found.value === "number") found.value = Number.isFinite(Number(value)) ? Math.max(-1, Math.round(Number(value))) : found.value;
    else if (typeof found.value === "boolean") found.value = value === "true";
    else found.value = value;
  }
}

/** Write every change of the state into the fragment, without a history entry for each. */
export function writeFragment(): void {
  const defaults = Object.fromEntries(Object.entries(kept).map(([name, each]) => [name, each.value]));
  readFragment();
  effect(() => {
    const changed = Object.entries(kept).filter(([name, each]) => each.value !== defaults[name]);
    const fragment = new URLSearchParams(changed.map(([name, each]) => [name, String(each.value)]));
    history.replaceState(null, "", `${location.pathname}${location.search}#${fragment}`);
  });
}

/** The parameters of every request that reads the text. */
export type TextParams = { text: string; target: string | null; model?: number };

/** A text of spaces is empty; other spaces stay, because they are part of tokens. */
export const textParams = (): TextParams => ({ text: text.value.trim() && text.value, target: target.value.trim() ? target.value : null });

/** The chosen kind of attention; another one if the model does not have it. */
export function chosenKind(model: Model): string {
  const kinds = Object.keys(model.kinds);
  return kinds.includes(kind.value) ? kind.value : kinds[kinds.length - 1];
}

/** The chosen layer and head of a kind of attention, at most the last; -1: the average. */
export const chosenPlace = (model: Model, kind: string): [number, number] =>
  [Math.max(-1, Math.min(layer.value, model.layers[kind] - 1)), Math.max(-1, Math.min(head.value, model.heads[kind] - 1))];

/** The sides of the queries and of the keys of a kind of attention. */
export const sidesOf = (kind: string): [string, string] =>
  kind === "cross" ? ["decoder", "encoder"] : [kind, kind];

/** The names of positions of a side: those of the decoder beside an encoder say what it reads and writes. */
export const positionNames = (trace: Trace, side: string): string[] =>
  trace.queries[side === "decoder" && "cross" in trace.queries ? "cross" : side];

/** A layer, which counts from 1, and its part of the names of hook points, which count from 0. */
export const layerName = (n: number, point = "blocks"): string => `layer ${n + 1} · ${point}.${n}`;
