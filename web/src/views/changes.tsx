// Edits of activations and what they change; gradient × input.

import { useState } from "preact/hooks";
import { isAvailable, isLive, numbers, useAnswer, type Array64 } from "../data";
import { Figure, Message } from "../parts/Figure";
import { Table, format } from "../parts/Table";
import { Tokens, position, visible } from "../parts/Tokens";
import { chosenKind, chosenPlace, edits, row, sidesOf, textParams, type Model, type Trace } from "../state";
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
      {edits.value && <Effect trace={trace} />}
      {edits.value && isLive && <LinesEffect model={model} />}
      <Gradients trace={trace} />
    </div>
  );
}

const OPS = { zero: "set to zero", mean: "replace by the mean over positions", scale: "multiply", copy: "copy from another text" };

const read = (): Edit[] => {
  try {
    const found = JSON.parse(edits.value || "[]");
    return Array.isArray(found) ? found : [];
  } catch {
    return [];
  }
};

function Editor({ model, trace }: { model: Model; trace: Trace }) {
  const [part, setPart] = useState("head");
  const [op, setOp] = useState("zero");
  const [value, setValue] = useState("2");
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
    if (op === "scale") edit.value = Number(value) || 0;
    if (op === "copy") edit.from = value;
    edits.value = JSON.stringify([...read(), edit]);
  };
  const describe = (edit: Edit) =>
    `${edit.op} ${edit.name}${edit.heads ? `, head ${edit.heads.map((n) => n + 1)}` : ""}${edit.positions ? `, position ${edit.positions.map((n) => n + 1)}` : ""}${edit.from ? ` of “${edit.from}”` : ""}${edit.value !== undefined ? ` by ${edit.value}` : ""}`;
  return (
    <Figure title="Change activations" name="edits" data={read} picture={false}>
      <KindButtons model={model} />
      <Tokens tokens={trace.tokens[queries]} label="Position" />
      <div class="controls">
        <select aria-label="Part" value={part} onChange={(event) => setPart(event.currentTarget.value)}>
          {Object.entries(parts).map(([name, [title]]) => <option key={name} value={name}>{title}</option>)}
        </select>
        <select aria-label="Operation" value={op} onChange={(event) => setOp(event.currentTarget.value)}>
          {Object.entries(OPS).map(([name, title]) => <option key={name} value={name}>{title}</option>)}
        </select>
        {(op === "scale" || op === "copy") && (
          <input class="short" aria-label={op === "scale" ? "Factor" : "Text to copy from"} value={value} onInput={(event) => setValue(event.currentTarget.value)} />
        )}
        <label class="inline"><input type="checkbox" checked={here} onChange={() => setHere(!here)} /> only the selected token</label>
        <button disabled={!isLive} title={isLive ? "" : "requires the live page: trifold look MODEL TEXT"} onClick={add}>Apply</button>
        <button disabled={!edits.value} onClick={() => (edits.value = "")}>Remove all</button>
      </div>
      {!isLive && <p class="quiet">Changes run the model. Open the page with <code>trifold look MODEL TEXT</code>.</p>}
      <ul>
        {read().map((edit, n) => (
          <li key={n}>
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
  if (!found) return <Message error={error} />;
  const tokens = trace.tokens[trace.side];
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
      {error && <Message error={error} />}
      <p>loss {format(sum(before))} → {format(sum(after))}; change {format(sum(after) - sum(before))}</p>
      <Table label="Effect at each position" columns={["position", "predicted before", "after", "loss before", "after", "change", "largest change of a logit"]} rows={rows} selected={row.value} />
    </Figure>
  );
}

/** The edits over many lines. */
function LinesEffect({ model }: { model: Model }) {
  const [typed, setTyped] = useState("");
  const [lines, setLines] = useState("");
  const { value: found, error } = useAnswer<Record<string, number[]> & { lines: number; labels: number }>("lines_effect", lines ? { lines, edits: read() } : null);
  const what = model.grid ? "image file" : "text";
  const hint = model.target === "Class" ? `${what}, tab and class on each line` : `one ${what} per line, or ${what}, tab, ${model.target?.toLowerCase() ?? "target"}`;
  const rows = ["loss", "accuracy", "bleu"].filter((name) => found?.[name]).map((name) => [name, ...(found as Record<string, number[]>)[name].map(format), format(found![name][1] - found![name][0])]);
  return (
    <Figure title="Effect over lines" name="lines" picture={false} data={() => found}>
      <textarea aria-label="Lines" rows={5} cols={70} placeholder={hint} value={typed} onInput={(event) => setTyped(event.currentTarget.value)} />
      <p><button disabled={!typed.trim()} onClick={() => setLines(typed)}>Measure</button> {found && `${found.lines} lines, ${found.labels} labels`}</p>
      {error && <Message error={error} />}
      {found && <Table label="Effect over lines" columns={["score", "before", "after", "change"]} rows={rows} />}
    </Figure>
  );
}

function Gradients({ trace }: { trace: Trace }) {
  const params = textParams();
  const wanted = row.value >= 0 && row.value < trace.tokens[trace.side].length && trace.top?.probabilities.shape.length === 2 ? { ...params, position: row.value } : params;
  const asked = isAvailable("gradients", wanted) ? wanted : params;
  const { value: found, error } = useAnswer<{ tokens: Record<string, string[]>; scores: Record<string, Array64> }>("gradients", asked);
  if (!found) return <Message error={error} />;
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
