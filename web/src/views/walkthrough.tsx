// One token through the model: every step with its formula, operands and result.

import { isAvailable, numbers, useAnswer, type Array64 } from "../data";
import { Figure, Message } from "../parts/Figure";
import { format } from "../parts/Table";
import { Tokens, position } from "../parts/Tokens";
import { layerName, side, textParams, type Model, type Trace } from "../state";

interface Step {
  title: string;
  formula: string;
  operands: Record<string, Array64>;
  result: Array64;
  hook: string | null;
}

const SHOWN = 12; // numbers of a vector before the rest is opened

export function Walkthrough(_: { model: Model }) {
  const params = textParams();
  const { value: trace, error } = useAnswer<Trace>("trace", params.text ? params : null);
  const sides = Object.keys(trace?.tokens ?? {});
  const chosen = sides.includes(side.value) ? side.value : (trace?.side ?? "");
  const tokens = trace?.tokens[chosen] ?? [];
  const wanted = { ...params, side: chosen, position: position(tokens.length) };
  const last = { ...wanted, position: tokens.length - 1 };
  const asked = isAvailable("walkthrough", wanted) ? wanted : last;
  const { value: found, error: failure } = useAnswer<{ steps: Step[] }>("walkthrough", trace ? asked : null);
  if (!trace) return <Message error={error ?? (params.text ? undefined : "Enter a text.")} />;
  return (
    <>
      {sides.length > 1 && (
        <div class="controls" role="group" aria-label="Side">
          {sides.map((each) => <button key={each} aria-pressed={each === chosen} onClick={() => (side.value = each)}>{each}</button>)}
        </div>
      )}
      <Tokens tokens={tokens} label="Token" selected={asked.position} />
      {asked !== wanted && <p class="quiet">This file contains the last token only.</p>}
      {failure && <Message error={failure} />}
      {found && !failure && (
        <Figure title={`${found.steps.length} steps of ${tokens[asked.position]}`} name="walkthrough" picture={false}
          data={() => found.steps}>
          <ol class="steps">{found.steps.map((step, n) => <li key={n}><Part step={step} /></li>)}</ol>
        </Figure>
      )}
    </>
  );
}

function Part({ step }: { step: Step }) {
  const [, layer, title] = /^(?:layer (\d+): )?(.*)$/s.exec(step.title) as RegExpExecArray;
  const place = layer && layerName(Number(layer) - 1);
  return (
    <details>
      <summary>
        {place && <span class="quiet">{place} </span>}
        <b>{title}</b> <code>{step.formula}</code>
      </summary>
      <table class="operands">
        <tbody>
          {Object.entries(step.operands).map(([name, array]) => (
            <tr key={name}><th scope="row">{name}</th><td><Values array={array} /></td></tr>
          ))}
          <tr class="result"><th scope="row">=</th><td><Values array={step.result} /></td></tr>
        </tbody>
      </table>
      {step.hook && <p class="quiet">hook point <code>{step.hook}</code></p>}
    </details>
  );
}

/** The rows of an array, cut to what can be read; the JSON file has all numbers. */
function Values({ array }: { array: Array64 }) {
  const values = numbers(array);
  const width = array.shape.at(-1) ?? 1;
  const height = Math.min(values.length / Math.max(1, width), SHOWN);
  const rows = Array.from({ length: height }, (_, n) => Array.from(values.slice(n * width, n * width + Math.min(width, SHOWN)), format).join("  "));
  const isCut = width > SHOWN || values.length / width > SHOWN;
  return (
    <>
      {rows.map((each, n) => <div key={n} class="numbers">{each}{width > SHOWN ? " …" : ""}</div>)}
      {isCut && <span class="quiet">{array.shape.join(" × ")} numbers</span>}
    </>
  );
}
