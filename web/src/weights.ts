// Attention weights of a text: averages over heads and layers, and tokens merged into words.

import { numbers, request, type Array64 } from "./data";
import { chosenKind, side, sidesOf, textParams, view, words, type Model, type TextParams, type Trace, type Words } from "./state";

export interface Weights {
  values: Float32Array; // 0 to 1
  rows: string[];
  columns: string[];
  precision: string; // in words
}

interface Layer {
  heads: Float32Array[]; // rows × columns each
  precision: string;
}

/** The heads of a layer. */
export async function headsOf(params: TextParams, kind: string, layer: number): Promise<Layer> {
  const { weights, computed } = await request<{ weights: Array64; computed: string }>("attention", { ...params, kind, layer });
  const [heads, rows, columns] = weights.shape;
  const all = numbers(weights) as Float32Array;
  const precision = weights.dtype === computed ? computed : `${weights.dtype} in this page, computed in ${computed}`;
  return { heads: Array.from({ length: heads }, (_, n) => all.subarray(n * rows * columns, (n + 1) * rows * columns)), precision };
}

/** The precision of weights, and the sums of their rows, which are below 1 where a sink or a summary takes a part. */
export function describe({ values, rows, columns, precision }: Weights): string {
  const sums = rows.map((_, r) => values.subarray(r * columns.length, (r + 1) * columns.length).reduce((sum, each) => sum + each, 0));
  const [least, most] = [Math.min(...sums), Math.max(...sums)].map((sum) => sum.toFixed(3));
  return `Weights in ${precision}; each row sums to ${least === most ? least : `${least} – ${most}`}.`;
}

/** The largest weights of blocks, at most `most` in each direction, and their numbers of rows and columns. */
export function shrink(values: Float32Array, rows: number, columns: number, most: number): [Float32Array, number, number] {
  const step = Math.ceil(Math.max(rows, columns) / most);
  if (step === 1) return [values, rows, columns];
  const [height, width] = [Math.ceil(rows / step), Math.ceil(columns / step)];
  const found = new Float32Array(height * width);
  for (let r = 0; r < rows; r++)
    for (let c = 0; c < columns; c++) {
      const at = Math.floor(r / step) * width + Math.floor(c / step);
      if (values[r * columns + c] > found[at]) found[at] = values[r * columns + c];
    }
  return [found, height, width];
}

export function mean(parts: ArrayLike<number>[]): Float32Array {
  const found = new Float32Array(parts[0].length);
  for (const part of parts) for (let n = 0; n < found.length; n++) found[n] += part[n] / parts.length;
  return found;
}

/** The weights of a head; head -1: the average of the layer; layer -1: that of all layers. */
export async function select(params: TextParams, model: Model, trace: Trace, kind: string, layer: number, head: number): Promise<Weights> {
  const layers = layer < 0 ? Array.from({ length: model.layers[kind] }, (_, n) => n) : [layer];
  const all = await Promise.all(layers.map((each) => headsOf(params, kind, each)));
  const parts = all.map(({ heads }) => (head < 0 || layer < 0 ? mean(heads) : heads[head]));
  const values = parts.length > 1 ? mean(parts) : parts[0];
  return { values, rows: trace.queries[kind], columns: trace.tokens[sidesOf(kind)[1]], precision: all[0].precision };
}

/** Tokens of words: weights to a word are added, those from a word averaged; special tokens stay. */
export function mergeWords(weights: Weights, trace: Trace, kind: string): Weights {
  const [rows, columns] = [queryWords(weights.rows, trace, kind), groups(weights.columns, trace.words[sidesOf(kind)[1]])];
  const values = new Float32Array(rows.labels.length * columns.labels.length);
  for (let r = 0; r < weights.rows.length; r++)
    for (let c = 0; c < weights.columns.length; c++)
      values[rows.of[r] * columns.labels.length + columns.of[c]] += weights.values[r * weights.columns.length + c] / rows.sizes[rows.of[r]];
  return { ...weights, values, rows: rows.labels, columns: columns.labels };
}

/** The words of queries; in cross-attention those that they write. */
function queryWords(names: string[], trace: Trace, kind: string) {
  const queries = trace.words[sidesOf(kind)[0]];
  if (kind !== "cross" || !trace.labels || trace.labels.length !== names.length) return groups(names, queries);
  const written = { texts: queries.texts.map((text) => `writes ${text}`), of_token: [...queries.of_token.slice(1), null] };
  return groups(names, written);
}

/** The number of tokens, or words, of which the shown view selects one. */
export async function countRows(model: Model): Promise<number> {
  const [trace, kind] = [await request<Trace>("trace", textParams()), chosenKind(model)];
  const labels = trace.queries[kind];
  if (view.value === "attention") return words.value && !model.grid ? queryWords(labels, trace, kind).labels.length : labels.length;
  if (view.value === "walkthrough" || view.value === "lens") return (trace.tokens[view.value === "lens" ? trace.side : side.value] ?? trace.tokens[trace.side]).length;
  return labels.length;
}

function groups(tokens: string[], words: Words) {
  const [labels, of, sizes] = [[] as string[], [] as number[], [] as number[]];
  let last: number | null = null;
  tokens.forEach((token, n) => {
    const word = words.of_token[n] ?? null;
    if (word === null || word !== last) {
      labels.push(word === null ? token : words.texts[word]);
      sizes.push(0);
    }
    of.push(labels.length - 1);
    sizes[labels.length - 1] += 1;
    last = word;
  });
  return { labels, of, sizes };
}
