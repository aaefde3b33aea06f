// Edits of activations and what they change; gradient × input.

import { useState } from "preact/hooks";
import { isAvailable, isLive, numbers, useAnswer, type Array64 } from "../data";
import { Figure, Message } from "../parts/Figure";
import { Table, format } from "../parts/Table";
import { TextArea } from "../parts/TextArea";
import { Tokens, position, visible } from "../parts/Tokens";
import { chosenKind, chosenPlace, edits, layerName, lines, positionNames, row, sidesOf, textParams, type Model, type Trace } from "../state";
import { KindButtons } from "./kinds";

interface Edit {
  name: string;
  op: string;
  heads?: number[];
  positions?: number[];
  value?: number;
  from?: string;
}

interface Side {
  tokens: string[] | string[][];
  probabilities: Array64;
  loss: Array64;
}

export function Changes({ model }: { model: Model }) {
  const params = textParams();
  const { value: trace, error } = useAnswer<Trace>("trace", params.text ? params : null);
  if (!trace) return <Message error={error ?? (params.text ? undefined : "Enter a text.")} />;
  return (
    <div class="stack">
      <Editor model={model} trace={trace} />
      {read().length > 0 && <Effect trace={trace} />}
      {read().length > 0 && isLive && <LinesEffect model={model} />}
      <Gradients trace={trace} />
    </div>
  );
}

const OPS = { zero: "set to zero", mean: "replace by the mean over positions", scale: "multiply", copy: "copy from another text" };

const isIndices = (all: unknown) => all === undefined || (Array.isArray(all) && all.every((n) => Number.isInteger(n) && n >= 0));
const isEdit = (each: Edit | null) =>
  typeof each?.name === "string" && each.op in OPS && isIndices(each.heads) && isIndices(each.positions) &&
  (each.op !== "scale" || Number.isFinite(each.value)) && (each.op !== "copy" || typeof each.from === "string");

/** The edits; none if those in the URL are not valid. */
const read = (): Edit[] => {
  try {
    const found = JSON.parse(edits.value || "[]");
    return Array.isArray(found) && found.every(isEdit) ? found : [];
  } catch {
    return [];
  }
};

/** An edit in words; layers, heads and positions count from 1. */
function describe({ name, op, heads, positions, value, from }: Edit): string {
  const [, side, point, number, part] = /^(\w+)\.(blocks|states)\.(\d+)(.*)$/.exec(name) ?? [];
  const what = part ? part.slice(1).replace(/\.sublayer\.heads$|\.output$/, "").replaceAll("_", " ") : "state";
  const list = (title: string, all?: number[]) => (all ? `, ${title} ${all.map((n) => n + 1).join(", ")}` : "");
  const place = side ? `${side} ${layerName(Number(number), point)}, ${what}` : name;
  return `${op} ${place}${list("head", heads)}${list("position", positions)}${op === "copy" ? ` of “${from}”` : op === "scale" ? ` by ${value}` : ""}`;
}

function Editor({ model, trace }: { model: Model; trace: Trace }) {
  const [part, setPart] = useState("head");
  const [op, setOp] = useState("zero");
  const [factor, setFactor] = useState("2");
  const [source, setSource] = useState("");
  const [here, setHere] = useState(false);
  const kind = chosenKind(model);
  const [queries] = sidesOf(kind);
  const [at, head] = chosenPlace(model, kind).map((n) => Math.max(0, n));
  const block = `${queries}.blocks.${at}`;
  const attention = kind === "cross" ? "cross_attention" : "self_attention";
  const parts: Record<string, [string, string]> = {
    head: ["this head", `${block}.${attention}.sublayer.heads`],
    attention: ["attention of the layer", `${block}.${attention}.output`],
    feed_forward: ["feed-forward of the layer", `${block}.feed_forward.output`],
    state: ["state after the layer", `${queries}.states.${at}`],
  };
  const add = () => {
    const edit: Edit = { name: parts[part][1], op };
    if (part === "head") edit.heads = [head];
    if (here) edit.positions = [position(trace.tokens[queries].length)];
    if (op === "scale") edit.value = Number(factor) || 0;
    if (op === "copy") edit.from = source;
    edits.value = JSON.stringify([...read(), edit]);
  };
  return (
    <Figure title="Change activations" name="edits" data={read} picture={false}>
      <KindButtons model={model} />
      <Tokens tokens={positionNames(trace, queries)} label="Position" />
      <div class="controls">
        <select aria-label="Part" value={part} onChange={(event) => setPart(event.currentTarget.value)}>
          {Object.entries(parts).map(([name, [title]]) => <option key={name} value={name}>{title}</option>)}
        </select>
        <select aria-label="Operation" value={op} onChange={(event) => setOp(event.currentTarget.value)}>
          {Object.entries(OPS).map(([name, title]) => <option key={name} value={name}>{title}</option>)}
        </select>
        {op === "scale" && <input class="short" aria-label="Factor" value={factor} onInput={(event) => setFactor(event.currentTarget.value)} />}
        {op === "copy" && <TextArea short label="Text to copy from" placeholder="text to copy from" value={source} onType={setSource} onEnd={setSource} />}
        <label class="inline"><input type="checkbox" checked={here} onChange={() => setHere(!here)} /> only the selected token</label>
        <button disabled={!isLive || (op === "copy" && !source.trim())} title={isLive ? "" : "requires the live page: trifold look MODEL TEXT"} onClick={add}>Apply</button>
        <button disabled={!edits.value} onClick={() => (edits.value = "")}>Remove all</button>
      </div>
      {!isLive && <p class="quiet">Changes run the model. Open the page with <code>trifold look MODEL TEXT</code>.</p>}
      {edits.value && !read().length && <Message error="The edits in the address of the page are not valid. Choose “Remove all”, or apply others." />}
      <ul>
        {read().map((edit, n) => (
          <li key={n} title={edit.name}>
            {describe(edit)}{" "}
            <button onClick={() => { const rest = read().filter((_, k) => k !== n); edits.value = rest.length ? JSON.stringify(rest) : ""; }}>remove</button>
          </li>
        ))}
      </ul>
    </Figure>
  );
}

function Effect({ trace }: { trace: Trace }) {
  const { value: found, error } = useAnswer<{ before: Side; after: Side; largest: Array64 }>("effect", { ...textParams(), edits: read() });
  const isWhole = read().some((edit) => edit.op === "copy" && !edit.positions);
  const problem = error && isWhole ? `${error}. For texts of different lengths, select a token and choose “only the selected token”.` : error;
  if (!found) return <Message error={problem} />;
  const tokens = positionNames(trace, trace.side);
  const best = ({ tokens: all, probabilities }: Side, n: number): [string, number] => {
    const isOne = typeof all[0] === "string";
    const top = probabilities.shape[probabilities.shape.length - 1];
    return [(isOne ? (all as string[])[0] : (all as string[][])[n][0]) ?? "", numbers(probabilities)[isOne ? 0 : n * top]];
  };
  const [before, after, largest] = [numbers(found.before.loss), numbers(found.after.loss), numbers(found.largest)];
  const sum = (losses: ArrayLike<number>) => Array.from(losses).filter((each) => !Number.isNaN(each)).reduce((total, each) => (total || 0) + each, NaN);
  const rows = Array.from(before, (loss, n) => {
    const [was, is] = [best(found.before, n), best(found.after, n)];
    const show = ([token, share]: [string, number]) => `${visible(token)} ${share.toFixed(3)}`;
    return [before.length === 1 ? "class" : visible(tokens[n] ?? ""), show(was), was[0] === is[0] ? show(is) : <b>{show(is)}</b>, format(loss), format(after[n]), format(after[n] - loss), format(largest[n])];
  });
  return (
    <Figure title="Effect" name="effect" picture={false} data={() => ({ edits: read(), before: { ...found.before, loss: Array.from(before) }, after: { ...found.after, loss: Array.from(after) } })}>
      {problem && <Message error={problem} />}
      <p>loss, sum over positions: {format(sum(before))} → {format(sum(after))}; change {format(sum(after) - sum(before))}</p>
      <Table label="Effect at each position" columns={["position", "predicted before", "after", "loss before", "after", "change", "largest change of a logit"]} rows={rows} selected={row.value} />
    </Figure>
  );
}

/** The edits over many lines. */
function LinesEffect({ model }: { model: Model }) {
  const [typed, setTyped] = useState(lines.value);
  const { value: found, error } = useAnswer<Record<string, number[]> & { lines: number; labels: number }>("lines_effect", lines.value ? { lines: lines.value, edits: read() } : null);
  const what = model.grid ? "image file" : "text";
  const hint = model.target === "Class" ? `${what}, tab and class on each line` : `one ${what} per line, or ${what}, tab, ${model.target?.toLowerCase() ?? "target"}`;
  const rows = ["loss", "accuracy", "bleu"].filter((name) => found?.[name]).map((name) => [name, ...(found as Record<string, number[]>)[name].map(format), format(found![name][1] - found![name][0])]);
  return (
    <Figure title="Effect over lines" name="lines" picture={false} data={() => found}>
      <textarea aria-label="Lines" rows={5} cols={70} placeholder={hint} value={typed} onInput={(event) => setTyped(event.currentTarget.value)} />
      <p><button disabled={!typed.trim()} onClick={() => (lines.value = typed)}>Measure</button> {found && `${found.lines} lines, ${found.labels} labels`}</p>
      {error && <Message error={error} />}
      <p class="quiet">Loss and accuracy are means per label; the effect above is a sum over positions.</p>
      {found && <Table label="Effect over lines" columns={["score", "before", "after", "change"]} rows={rows} />}
    </Figure>
  );
}

function Gradients({ trace }: { trace: Trace }) {
  const params = textParams();
  const wanted = row.value >= 0 && row.value < trace.tokens[trace.side].length && trace.top?.probabilities.shape.length === 2 ? { ...params, position: row.value } : params;
  const asked = isAvailable("gradients", wanted) ? wanted : params;
  const { value: found, error } = useAnswer<{ tokens: Record<string, string[]>; scores: Record<string, Array64> }>("gradients", asked);
  if (!found || error) return <Message error={error} />;
  const at = (asked as { position?: number }).position ?? trace.masks[0];
  const of = trace.top?.probabilities.shape.length === 1 ? "class" : `prediction at ${at === undefined ? "the last position" : `position ${at + 1}`}`;
  return (
    <Figure title={`Gradient × input of the best ${of}`} name="gradients" picture={false} data={() => Object.fromEntries(Object.entries(found.scores).map(([side, array]) => [side, Array.from(numbers(array))]))}>
      {Object.entries(found.scores).map(([side, array]) => (
        <div key={side}>
          <h3>{side}: orange raises the logit, blue lowers it</h3>
          <Tokens tokens={found.tokens[side]} label={`Gradient times input, ${side}`} scores={numbers(array)} />
        </div>
      ))}
    </Figure>
  );
}
