// The training run: its curves, a head in each checkpoint, and the samples of each validation.

import { isAvailable, numbers, useAnswer, type Array64 } from "../data";
import { Curve } from "../parts/Curve";
import { Figure, Message } from "../parts/Figure";
import { HeatMap } from "../parts/HeatMap";
import { format } from "../parts/Table";
import { checkpoint, chosenKind, chosenPlace, layerName, sidesOf, textParams, theme, validation, type Model, type Trace } from "../state";
import { describe } from "../weights";

interface Run {
  name: string;
  curves: Record<string, { steps: Array64; values: Array64 }>;
  samples: { step: number; header: string[]; rows: string[][] }[];
  checkpoints: number[];
}

export function Run({ model }: { model: Model }) {
  const { value: run, error } = useAnswer<Run>("run", {});
  if (!run) return <Message error={error} />;
  const shown = run.samples.at(validation.value) ?? run.samples.at(-1);
  return (
    <>
      <Figure title={`${run.name}: curves`} name="run" data={() => run} picture={false}>
        <div class="columns" key={theme.value}>
          {Object.entries(run.curves).map(([name, curve]) => (
            <Curve key={name} title={name.replaceAll("_", " ")} steps={numbers(curve.steps)} values={numbers(curve.values)} />
          ))}
        </div>
      </Figure>
      {run.checkpoints.length > 0 && <Checkpoints model={model} />}
      {shown && (
        <Figure title={`Samples at step ${shown.step.toLocaleString("en")}`} name="samples" data={() => run.samples} picture={false}>
          <label class="slider">validation
            <input type="range" min={0} max={run.samples.length - 1} value={run.samples.indexOf(shown)} onInput={(event) => (validation.value = Number(event.currentTarget.value))} />
          </label>
          <table class="facts samples">
            <thead><tr>{shown.header.map((name) => <th key={name} scope="col">{name}</th>)}</tr></thead>
            <tbody>{shown.rows.map((row, n) => <tr key={n}>{row.map((cell, c) => <td key={c}>{cell}</td>)}</tr>)}</tbody>
          </table>
        </Figure>
      )}
    </>
  );
}

function Checkpoints({ model }: { model: Model }) {
  const chosen = chosenKind(model);
  const [layer, head] = chosenPlace(model, chosen).map((n) => Math.max(0, n));
  const place = { layer, head };
  const params = { ...textParams(), kind: chosen, ...place };
  const possible = Boolean(params.text) && isAvailable("head_over_checkpoints", params);
  const { value: trace, error: failure } = useAnswer<Trace>("trace", params.text ? textParams() : null);
  const { value, error } = useAnswer<{ steps: number[]; weights: Array64 }>("head_over_checkpoints", possible ? params : null);
  const title = `${chosen}: ${layerName(place.layer)}, head ${place.head + 1} over checkpoints`;
  if (!possible || !trace || !value || error) {
    return <Figure title={title} name="checkpoints" picture={false}><Message error={possible ? (failure ?? error) : params.text ? "Open the model with trifold look to see a head in each checkpoint." : "Enter a text."} /></Figure>;
  }
  const last = value.steps.length - 1;
  const n = checkpoint.value < 0 ? last : Math.min(checkpoint.value, last);
  const [, rows, columns] = value.weights.shape;
  const all = numbers(value.weights) as Float32Array;
  const values = all.subarray(n * rows * columns, (n + 1) * rows * columns);
  const weights = { values, rows: trace.queries[chosen].slice(0, rows), columns: trace.tokens[sidesOf(chosen)[1]].slice(0, columns), precision: value.weights.dtype };
  return (
    <Figure title={`${title}: step ${value.steps[n].toLocaleString("en")}`} name="checkpoints" data={() => ({ ...weights, values: value.weights, steps: value.steps })}>
      <label class="slider">checkpoint
        <input type="range" min={0} max={last} value={n} onInput={(event) => (checkpoint.value = Number(event.currentTarget.value))} />
      </label>
      <HeatMap {...weights} label={title} ends={["0", "1"]} between="attends to" show={(r, c) => format(values[r * columns + c])} />
      <p class="quiet">{describe(weights)}</p>
    </Figure>
  );
}
