// Attention: thumbnails of every layer and head; one of them, or an average, as a heat map or as lines.

import { useEffect, useState } from "preact/hooks";
import { isLive, start, useAnswer } from "../data";
import { Figure, Message } from "../parts/Figure";
import { HeatMap, paint } from "../parts/HeatMap";
import { format } from "../parts/Table";
import { TextArea } from "../parts/TextArea";
import { Lines } from "../parts/Lines";
import { chosenKind, chosenPlace, head, kind, layer, layerName, mode, other, row, sidesOf, textParams, words, type Model, type TextParams, type Trace } from "../state";
import { describe, headsOf, mergeWords, select, shrink, type Weights } from "../weights";

export function Attention({ model }: { model: Model }) {
  const params = textParams();
  const { value: trace, error } = useAnswer<Trace>("trace", params.text ? params : null);
  const chosen = chosenKind(model);
  if (!params.text) return <Message error="Enter a text." />;
  if (!trace) return <Message error={error} />;
  const beside: { name: string; params: TextParams }[] = start.models.slice(1).map((name, n) => ({ name, params: { ...params, model: n + 1 } }));
  if (other.value) beside.push({ name: other.value, params: { ...params, text: other.value } });
  return (
    <>
      <div class="controls" role="group" aria-label="Attention">
        {Object.entries(model.kinds).map(([name, title]) => (
          <button key={name} aria-pressed={name === chosen} onClick={() => (kind.value = name)} title={title}>{name}</button>
        ))}
        <button aria-pressed={layer.value < 0} onClick={() => (layer.value = layer.value < 0 ? 0 : -1)}>average of layers</button>
        <button aria-pressed={head.value < 0} disabled={layer.value < 0} onClick={() => (head.value = head.value < 0 ? 0 : -1)}>average of heads</button>
        <span class="gap" />
        <button aria-pressed={mode.value === "map"} onClick={() => (mode.value = "map")}>map</button>
        <button aria-pressed={mode.value === "lines"} onClick={() => (mode.value = "lines")}>lines</button>
        {!model.grid && <button aria-pressed={words.value} onClick={() => (words.value = !words.value)}>whole words</button>}
        {!model.grid && (
          <label class="inline">second text
            <TextArea value={other.value} disabled={!isLive} title={isLive ? "" : "requires the live page"} onEnd={(typed) => (other.value = typed)} />
          </label>
        )}
      </div>
      <div class="columns">
        <Thumbnails model={model} trace={trace} kind={chosen} params={params} />
        <div class="beside">
          <Head first={model} kind={chosen} params={params} title={beside.length ? (start.models[0] ?? "") : ""} space={beside.length ? 480 : undefined} />
          {beside.map((each) => <Head key={each.name} first={model} kind={chosen} params={each.params} title={each.name} space={480} />)}
        </div>
      </div>
    </>
  );
}

/** What a model lacks for the chosen head, or "". */
function lack({ layers, heads }: Model, name: string, kind: string, layer: number, head: number): string {
  const count = (size: number, what: string) => `${name} has ${size} ${what}${size === 1 ? "" : "s"}.`;
  if (!layers[kind]) return `${name} has no ${kind} attention.`;
  return layer >= layers[kind] ? count(layers[kind], "layer") : layer >= 0 && head >= heads[kind] ? count(heads[kind], "head") : "";
}

/** The chosen head for a text and a model; first: the model whose layers and heads are chosen from. */
function Head({ first, kind, params, title, space }: { first: Model; kind: string; params: TextParams; title: string; space?: number }) {
  const { value: trace, error } = useAnswer<Trace>("trace", params);
  const { value: model, error: problem } = useAnswer<Model>("model", { model: params.model });
  const [weights, setWeights] = useState<Weights | null>(null);
  const [failure, setFailure] = useState("");
  const [[at, each], whole] = [chosenPlace(first, kind), words.value && !first.grid];
  const lacks = model && lack(model, start.models[params.model ?? 0] || model.name, kind, at, each);
  useEffect(() => {
    setFailure("");
    if (!trace || !model || lacks) return setWeights(null);
    let isCurrent = true;
    select(params, model, trace, kind, at, each).then(
      (found) => {
        if (!isCurrent) return;
        setWeights(whole ? mergeWords(found, trace, kind) : found);
      },
      (problem: Error) => {
        if (!isCurrent) return;
        setWeights(null);
        setFailure(problem.message);
      },
    );
    return () => {
      isCurrent = false;
    };
  }, [trace, model, kind, at, each, whole]);
  if (!trace || !model) return <Message error={error ?? problem} />;
  const name = at < 0 ? "average of all layers" : `${layerName(at)}, ${each < 0 ? "average of the heads" : `head ${each + 1}`}`;
  const selectRow = (n: number) => (row.value = n === row.value ? -1 : n);
  const label = `Attention weights, ${name}`;
  const data = weights ? () => ({ ...weights, values: Array.from(weights.values) }) : undefined;
  return (
    <Figure title={`${title ? `${title}: ` : ""}${kind} attention, ${name}`} name={`attention-${kind}-${at + 1}-${each + 1}`} data={data} picture={weights !== null}>
      {(failure || lacks) && <Message error={failure || lacks} />}
      {weights && mode.value === "lines" && <Lines {...weights} row={row.value} label={label} onSelect={selectRow} />}
      {weights && mode.value === "map" && (
        <HeatMap {...weights} row={row.value} label={label} onSelect={selectRow} space={space} ends={["0", "1"]} between="attends to" show={(r, c) => format(weights.values[r * weights.columns.length + c])} />
      )}
      {weights && <p class="quiet">{describe(weights)}</p>}
      {weights && model.grid && <Grid weights={weights} grid={model.grid} />}
    </Figure>
  );
}

/** What one query attends to, as the patches lie in the image; the class token is left out. */
function Grid({ weights, grid: [height, width] }: { weights: Weights; grid: [number, number] }) {
  const query = Math.max(0, row.value);
  const size = weights.columns.length;
  const values = Array.from(weights.values.slice(query * size + 1, (query + 1) * size));
  const most = Math.max(1e-12, ...values);
  const names = (count: number) => Array.from({ length: count }, (_, n) => String(n + 1));
  return (
    <>
      <h3>patches that {weights.rows[query]} attends to</h3>
      <HeatMap values={values.map((value) => value / most)} rows={names(height)} columns={names(width)} label={`Patches that ${weights.rows[query]} attends to`}
        ends={["0", format(most)]} show={(r, c) => format(values[r * width + c])} />
    </>
  );
}

interface ThumbnailProps {
  model: Model;
  trace: Trace;
  kind: string;
  params: TextParams;
}

function Thumbnails({ model, trace, kind, params }: ThumbnailProps) {
  const heads = Array.from({ length: model.heads[kind] }, (_, n) => n);
  return (
    <div class="scroll"><table class="thumbnails">
      <caption>layer × head</caption>
      <tbody>
        <tr>
          <td />
          {heads.map((n) => <th key={n} scope="col">{n + 1}</th>)}
        </tr>
        {Array.from({ length: model.layers[kind] }, (_, n) => (
          <ThumbnailRow key={`${kind} ${n}`} model={model} trace={trace} kind={kind} params={params} number={n} />
        ))}
      </tbody>
    </table></div>
  );
}

function ThumbnailRow({ model, trace, kind, params, number }: ThumbnailProps & { number: number }) {
  const [pictures, setPictures] = useState<string[]>([]);
  useEffect(() => {
    let isCurrent = true;
    const [rows, columns] = [trace.queries[kind].length, trace.tokens[sidesOf(kind)[1]].length];
    headsOf(params, kind, number).then(
      ({ heads }) => isCurrent && setPictures(heads.map((each) => paint(...shrink(each, rows, columns, 52)))),
      () => isCurrent && setPictures([]),
    );
    return () => {
      isCurrent = false;
    };
  }, [trace, kind, number]);
  const [at, each] = chosenPlace(model, kind);
  return (
    <tr>
      <th scope="row" title={layerName(number)}>{number + 1}</th>
      {pictures.map((picture, n) => (
        <td key={n}>
          <button class="thumbnail" aria-pressed={at === number && each === n} aria-label={`Layer ${number + 1}, head ${n + 1}`}
            onClick={() => { layer.value = number; head.value = n; }}>
            <img src={picture} alt="" />
          </button>
        </td>
      ))}
    </tr>
  );
}
