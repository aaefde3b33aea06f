// The tree of a search: what it considered, what it kept, and why it discarded the rest.

import { hierarchy, tree as layout, type HierarchyPointNode } from "d3-hierarchy";
import { linkHorizontal } from "d3-shape";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { css } from "../color";
import { isLive, useAnswer } from "../data";
import { Figure, Message } from "../parts/Figure";
import { measure } from "../parts/labels";
import { Table, format } from "../parts/Table";
import { visible } from "../parts/Tokens";
import { discarded, search, textParams, type Model } from "../state";

interface Node {
  parent: number;
  id: number;
  token: string;
  probability: number; // the model's
  adjusted: number; // in the search
  score: number;
  kept: boolean;
  reason: string;
}

type Settings = Record<string, unknown> & { num_beams?: number; num_return_sequences?: number };

interface Answer {
  nodes: Node[];
  outputs: { text: string; score: number; finish_reason: string; node: number }[];
  settings: Settings;
}

const LIVE = "requires the live page: trifold look MODEL TEXT";
const FILTERS = ["temperature", "top_k", "top_p", "min_p"];
const ROW = 20; // pixels

const read = (): Record<string, unknown> & { forced?: number[] } => {
  try {
    return JSON.parse(search.value || "{}") ?? {};
  } catch {
    return {};
  }
};
const write = (options: Record<string, unknown>) => (search.value = Object.keys(options).length ? JSON.stringify(options) : "");

export function Search(_: { model: Model }) {
  const options = read();
  const { text } = textParams();
  const { value: found, error } = useAnswer<Answer>("search", text ? { text, ...options } : null);
  const nodes = found?.nodes ?? [];
  const path = (n: number): number[] => (n > 0 ? [...path(nodes[n].parent), n] : []);
  const force = isLive ? (n: number) => write({ ...options, forced: path(n).map((each) => nodes[each].id) }) : undefined;
  const forced = options.forced ?? [];
  const best = found?.outputs.length ? path(found.outputs[0].node) : [];
  const asked = { do_sample: options.samples !== undefined, num_return_sequences: options.samples as number, ...options };
  const settings = found && !error ? found.settings : { ...found?.settings, ...asked }; // beside an error: those that are refused
  return (
    <div class="stack">
      <div>
        <Controls settings={settings} />
        {(error || !found) && <Message error={error ?? (text ? undefined : "Enter a text.")} />}
        {forced.length > 0 && (
          <p>
            Every output begins with <b>{best.length && !error ? best.slice(0, forced.length).map((n) => visible(nodes[n].token)).join(" ") : forced.join(" ")}</b>{" "}
            <button onClick={() => write({ ...options, forced: undefined })}>Remove</button>
          </p>
        )}
      </div>
      {found && <Results found={found} best={best} path={path} force={force} />}
    </div>
  );
}

interface ResultProps {
  found: Answer;
  best: number[];
  path: (n: number) => number[];
  force?: (n: number) => void;
}

function Results({ found, best, path, force }: ResultProps) {
  const [isOpen, setOpen] = useState(false);
  return (
    <>
      <Figure title="Outputs" name="outputs" picture={false} data={() => found.outputs}>
        <Table label="List of outputs" columns={["rank", "output", "score", "ends with"]} selected={0}
          rows={found.outputs.map((each, n) => [n + 1, each.text, format(each.score), each.finish_reason === "stop" ? "end" : "length limit"])} />
      </Figure>
      <Figure title="Tree" name="search" data={() => found}>
        <p class="quiet">
          A token has the model's probability and, where it differs, → that after penalties, temperature, top-k and top-p. Lines are wide and dots bright where
          the latter is large, orange is the best output. Discarded tokens are dashed; point at one for the reason.
          {isLive ? " Click a token to force it." : ""}
        </p>
        <label class="inline"><input type="checkbox" checked={discarded.value} onChange={() => (discarded.value = !discarded.value)} /> discarded tokens</label>
        <Tree nodes={found.nodes} best={best} outputs={found.outputs.map((each) => each.node)} hasAll={discarded.value} force={force} />
      </Figure>
      <details onToggle={(event) => setOpen(event.currentTarget.open)}>
        <summary>Table of all {found.nodes.length - 1} candidates</summary>
        {isOpen && <Candidates nodes={found.nodes} path={path} force={force} />}
      </details>
    </>
  );
}

function Controls({ settings }: { settings: Settings }) {
  const kind = settings.do_sample ? "samples" : settings.num_beams === 1 ? "greedy" : "beams";
  const most = settings.do_sample ? (settings.num_return_sequences ?? 1) : settings.num_beams;
  const change = (name: string, value: unknown) => {
    const all: Record<string, unknown> = { kind, count: Math.max(2, most ?? 2), ...settings, forced: read().forced, [name]: value };
    const names = ["forced", "max_new_tokens", "repetition_penalty", ...(all.kind === "samples" ? ["seed", ...FILTERS] : [])];
    const chosen = Object.fromEntries(names.map((each) => [each, all[each]]));
    chosen[all.kind === "samples" ? "samples" : "num_beams"] = all.kind === "greedy" ? 1 : all.kind === "samples" ? Math.max(1, all.count as number) : all.count;
    write(chosen);
  };
  const field = (label: string, name: string, value: unknown, step = 1) => (
    <label class="inline">{label}
      <input class="number" type="number" min={step < 1 ? 0 : 1} step={step} value={value === undefined ? "" : Number(value)} disabled={!isLive} title={isLive ? "" : LIVE}
        onChange={(event) => change(name, Number.isNaN(event.currentTarget.valueAsNumber) ? undefined : event.currentTarget.valueAsNumber)} />
    </label>
  );
  return (
    <div class="controls" role="group" aria-label="Search">
      <select aria-label="Kind of search" value={kind} disabled={!isLive} title={isLive ? "" : LIVE} onChange={(event) => change("kind", event.currentTarget.value)}>
        {["beams", "greedy", "samples"].map((each) => <option key={each}>{each}</option>)}
      </select>
      {kind !== "greedy" && field("number", "count", most)}
      {field("length", "max_new_tokens", settings.max_new_tokens)}
      {field("repetition penalty", "repetition_penalty", settings.repetition_penalty, 0.1)}
      {kind === "samples" && FILTERS.map((name) => field(name.replace("_", "-"), name, settings[name], name === "top_k" ? 1 : 0.05))}
      {kind === "samples" && field("seed", "seed", settings.seed)}
    </div>
  );
}

interface Branch {
  n: number;
  label: string;
  children: Branch[];
}

const percent = (share: number) => (share === 0 ? "0%" : share < 0.0005 ? "<0.1%" : share > 0.9995 && share < 1 ? ">99.9%" : `${(100 * share).toFixed(1)}%`);

/** The probability of the model, and the one in the search where it differs. */
const shares = ({ probability, adjusted }: Node) =>
  Math.abs(probability - adjusted) < 1e-4 * probability ? percent(probability) : `${percent(probability)} → ${percent(adjusted)}`;

/** The width of a label with its probability. */
const extent = (label: string, suffix: string) => measure(`${label} `, 14) + 0.72 * measure(suffix, 14);

interface TreeProps {
  nodes: Node[];
  best: number[];
  outputs: number[];
  hasAll: boolean;
  force?: (n: number) => void;
}

function Tree({ nodes, best, outputs, hasAll, force }: TreeProps) {
  const branches = nodes.map((node, n): Branch => ({ n, label: n ? visible(node.token) : "start", children: [] }));
  nodes.forEach((node, n) => n && (hasAll || node.kept) && branches[node.parent].children.push(branches[n]));
  const root = layout<Branch>().nodeSize([ROW, 1]).separation(() => 1)(hierarchy(branches[0]));
  const points = root.descendants();
  const chance = ({ target }: { target: HierarchyPointNode<Branch> }) => nodes[target.data.n].adjusted;
  const links = root.links().sort((a, b) => chance(a) - chance(b));
  const ranks = (n: number) => outputs.flatMap((each, k) => (each === n ? [k + 1] : [])).join(", ");
  const suffix = (n: number) => (n ? shares(nodes[n]) : "");
  const widths = new Map<number, number>(); // of a column
  for (const { depth, data } of points) {
    const width = 24 + extent(data.label, suffix(data.n)) + 9 * ranks(data.n).length;
    widths.set(depth, Math.max(widths.get(depth) ?? 0, width));
  }
  const left = (depth: number): number => (depth ? left(depth - 1) + (widths.get(depth - 1) ?? 0) + 32 : 10);
  const lefts = [...widths.keys()].map(left);
  const top = Math.min(...points.map((point) => point.x)) - ROW;
  const height = Math.max(...points.map((point) => point.x)) - top + ROW;
  const width = Math.max(...points.map(({ depth }) => lefts[depth] + (widths.get(depth) ?? 0))) + 10;
  const link = linkHorizontal<unknown, [number, number]>();
  const ends = ({ depth, data }: HierarchyPointNode<Branch>) => lefts[depth] + 14 + extent(data.label, suffix(data.n));
  const place = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => place.current?.scrollTo(0, points[0].x - top - place.current.clientHeight / 2), [nodes, hasAll]); // shows the start
  return (
    <div class="scroll tall" ref={place} tabIndex={0} role="region" aria-label="Tree of the search">
      <svg class="figure" width={width} height={height} role="img" aria-label={`Search with ${nodes.length - 1} candidates; the table below lists them`}>
        {links.map(({ source, target }) => {
          const { adjusted, kept } = nodes[target.data.n];
          const path = link({ source: [ends(source), source.x - top], target: [lefts[target.depth] - 5, target.x - top] });
          return (
            <path key={target.data.n} d={path ?? ""} fill="none" stroke={best.includes(target.data.n) ? "#d9480f" : "currentColor"}
              stroke-width={1 + 4 * adjusted} stroke-dasharray={kept ? undefined : "3 3"} opacity={best.includes(target.data.n) ? 1 : kept ? 0.5 : 0.3} />
          );
        })}
        {points.map(({ x, depth, data }) => {
          const { probability, adjusted, kept, reason, score } = nodes[data.n];
          const rank = ranks(data.n);
          return (
            <g key={data.n} class={force && data.n ? "link" : undefined} opacity={kept ? 1 : 0.65} onClick={() => data.n && force?.(data.n)}
              transform={`translate(${lefts[depth]},${x - top})`}>
              <title>{data.n ? `${data.label}: P of the model ${probability.toPrecision(4)}, in the search ${adjusted.toPrecision(4)}, sum of log P ${format(score)}\n${reason || "continued"}` : "start"}</title>
              <circle r={4.5} fill={css("weight", 255 * adjusted)} stroke="currentColor" stroke-width={0.75} />
              <text x={9} y={4} fill="currentColor" font-weight={best.includes(data.n) ? 700 : 400}>
                {data.label} <tspan font-size={10} opacity={0.85}>{suffix(data.n)}</tspan>
                {rank && <tspan font-weight={700} fill="#d9480f"> #{rank}</tspan>}
              </text>
            </g>
          );
        })}
      </svg>
    </div>
  );
}

function Candidates({ nodes, path, force }: { nodes: Node[]; path: (n: number) => number[]; force?: (n: number) => void }) {
  const rows = nodes.slice(1).map((node, k) => [
    path(k + 1).length,
    path(node.parent).map((n) => visible(nodes[n].token)).join(" ").slice(-40),
    visible(node.token),
    format(node.probability),
    format(node.adjusted),
    format(node.score),
    node.reason || "continued",
    <button disabled={!force} title={force ? "" : LIVE} aria-label={`Force ${node.token}`} onClick={() => force?.(k + 1)}>force</button>,
  ]);
  return <Table label="Candidates" columns={["step", "after", "token", "probability of the model", "in the search", "sum of log P", "result", "force"]} rows={rows} />;
}
