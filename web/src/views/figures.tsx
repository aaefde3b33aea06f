// The standard figures, computed by the model's own code: embeddings, positions, masks and learning rates.

import { useState } from "preact/hooks";
import { isAvailable, isLive, numbers, useAnswer, type Array64 } from "../data";
import { Curve } from "../parts/Curve";
import { Figure, Message } from "../parts/Figure";
import { HeatMap } from "../parts/HeatMap";
import { measure } from "../parts/labels";
import { Bar, Table, format } from "../parts/Table";
import { visible } from "../parts/Tokens";
import { axis, figure, side, textParams, theme, token, type Model } from "../state";

const PARTS = { embeddings: Embeddings, positions: Positions, masks: Masks, schedules: Schedules };

export function Figures({ model }: { model: Model }) {
  const names = Object.keys(PARTS).filter((name) => name !== "embeddings" || model.tables.length) as (keyof typeof PARTS)[];
  const chosen = names.find((name) => name === figure.value) ?? names[0];
  const Part = PARTS[chosen];
  return (
    <>
      <div class="controls" role="group" aria-label="Figures">
        {names.map((name) => <button key={name} aria-pressed={name === chosen} onClick={() => (figure.value = name)}>{name}</button>)}
      </div>
      <Part model={model} />
    </>
  );
}

interface Components {
  ids: number[];
  tokens: string[];
  marked: number[];
  points: Array64;
  shares: Array64;
}

function Embeddings({ model }: { model: Model }) {
  const of = model.tables.includes(side.value) ? side.value : model.tables[model.tables.length - 1];
  const { value: found, error } = useAnswer<Components>("components", { side: of, ...textParams(), text: textParams().text || null });
  const second = axis.value === 2 ? 2 : 1;
  if (!found || error) return <Message error={error} />;
  const shares = Array.from(numbers(found.shares), (share) => `${(100 * share).toFixed(1)}%`);
  const given = token.value.startsWith('"') ? token.value.slice(1) : Number(token.value) || 0;
  const chosen: Chosen = token.value ? given : (found.marked.at(-1) ?? null);
  const choose = (id: number) => isAvailable("neighbours", { side: of, token: id }) && (token.value = String(id));
  const name = (id: number) => visible(found.tokens[found.ids.indexOf(id)] ?? "");
  return (
    <>
      <div class="controls">
        {model.tables.length > 1 && model.tables.map((each) => <button key={each} aria-pressed={each === of} onClick={() => { side.value = each; token.value = ""; }}>{each}</button>)}
        <select aria-label="Vertical axis" value={second} onChange={(event) => (axis.value = Number(event.currentTarget.value))}>
          {[1, 2].map((n) => <option key={n} value={n}>components 1 and {n + 1}</option>)}
        </select>
        <input class="short" aria-label="Token" placeholder="token, and Enter" disabled={!isLive} title={isLive ? "" : "requires the live page: trifold look MODEL TEXT"}
          onChange={(event) => event.currentTarget.value && (token.value = `"${event.currentTarget.value}`)} />
        {found.marked.map((id) => <button key={id} class="token" aria-pressed={id === chosen} onClick={() => choose(id)}>{name(id)}</button>)}
      </div>
      <div class="columns">
        <Figure title={`Principal components of ${found.ids.length.toLocaleString("en")} embeddings: ${shares[0]} and ${shares[second]} of the variance`} name="components"
          data={() => ({ ...found, points: Array.from(numbers(found.points)), shares: Array.from(numbers(found.shares)) })}>
          <Scatter found={found} second={second} chosen={chosen} onSelect={choose} />
        </Figure>
        {chosen !== null && <Neighbours side={of} token={chosen} />}
      </div>
    </>
  );
}

const [WIDTH, HEIGHT] = [640, 480];

type Chosen = number | string | null;

function Scatter({ found, second, chosen, onSelect }: { found: Components; second: number; chosen: Chosen; onSelect: (id: number) => void }) {
  const [near, setNear] = useState(-1);
  const values = numbers(found.points);
  const size = found.points.shape[1];
  const axis = (n: number, length: number) => {
    const all = found.ids.map((_, k) => values[k * size + n]);
    const [low, high] = [Math.min(...all), Math.max(...all)];
    return all.map((value) => 16 + ((value - low) / (high - low || 1)) * (length - 32));
  };
  const [xs, ys] = [axis(0, WIDTH), axis(Math.min(second, size - 1), HEIGHT).map((y) => HEIGHT - y)];
  const marked = new Set(found.marked);
  const move = (event: MouseEvent) => {
    const box = (event.currentTarget as Element).getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const apart = (k: number) => Math.hypot(xs[k] - x, ys[k] - y);
    const best = found.ids.reduce((least, _, k) => (apart(k) < apart(least) ? k : least), 0);
    setNear(apart(best) < 16 ? best : -1);
  };
  const label = (k: number) => <text key={found.ids[k]} class="over" x={lefts[k]} y={ys[k] - 4} fill="currentColor">{visible(found.tokens[k])}</text>;
  const shown = found.ids.map((_, k) => k).filter((k) => marked.has(found.ids[k]));
  const widths = found.tokens.map((token) => measure(visible(token), 14));
  const lefts = xs.map((x, k) => (x + 6 + widths[k] > WIDTH ? Math.max(2, x - 6 - widths[k]) : x + 6));
  const named: number[] = []; // whose labels do not overlap; the others are shown on hover
  for (const k of [...shown].sort((a, b) => Number(found.ids[b] === chosen) - Number(found.ids[a] === chosen)))
    if (named.every((n) => Math.abs(ys[n] - ys[k]) > 15 || lefts[n] > lefts[k] + widths[k] || lefts[k] > lefts[n] + widths[n])) named.push(k);
  return (
    <>
      <svg class="figure framed" width={WIDTH} height={HEIGHT} role="img" aria-label="Embeddings along two principal components">
        {found.ids.map((id, k) => !marked.has(id) && <circle key={id} cx={xs[k]} cy={ys[k]} r={2.5} fill="currentColor" opacity={0.35} />)}
        {shown.map((k) => <circle key={found.ids[k]} cx={xs[k]} cy={ys[k]} r={found.ids[k] === chosen ? 6 : 4} fill="#d9480f" />)}
        {named.map(label)}
        {near >= 0 && <g data-hover><circle cx={xs[near]} cy={ys[near]} r={6} class="mark" />{!named.includes(near) && label(near)}</g>}
        <rect data-hover width={WIDTH} height={HEIGHT} fill="transparent" onMouseMove={move} onMouseLeave={() => setNear(-1)} onClick={() => near >= 0 && onSelect(found.ids[near])} />
      </svg>
      <p class="readout">{near >= 0 ? `${visible(found.tokens[near])}, id ${found.ids[near]}: ${format(values[near * size])}, ${format(values[near * size + second])}` : isLive ? "Click a point for its nearest neighbours." : "Orange: the tokens of the text."}</p>
    </>
  );
}

function Neighbours({ side, token }: { side: string; token: number | string }) {
  const { value: found, error } = useAnswer<{ token: string; tokens: string[]; similarity: Array64 }>("neighbours", { side, token });
  if (!found) return <Message error={error} />;
  const similarity = numbers(found.similarity);
  return (
    <Figure title={`Nearest to ${visible(found.token)}`} name="neighbours" picture={false} data={() => ({ ...found, similarity: Array.from(similarity) })}>
      {error && <Message error={error} />}
      <Table label="Nearest neighbours" columns={["token", "cosine"]} rows={found.tokens.map((each, n) => [visible(each), <Bar value={similarity[n]} />])} />
    </Figure>
  );
}

interface Angles {
  kind: string;
  sinusoids: Array64;
  similarity: Array64;
  frequencies: Record<string, Array64>;
  angles: Array64;
  // Of parts that may be missing:
  slopes?: Array64;
  alibi?: Array64;
  buckets?: Record<string, Array64>;
  offsets?: Record<string, Array64>;
}

const count = (size: number, first = 0) => Array.from({ length: size }, (_, n) => String(n + first));

interface MatrixProps {
  title: string;
  array: Array64;
  rows: string;
  columns: string;
  paint?: (value: number) => number; // -1 to 1
  first?: number; // number of the first column
}

function Matrix({ title, array, rows, columns, paint = (value) => value, first = 0 }: MatrixProps) {
  const [values, [height, width]] = [numbers(array), array.shape];
  return (
    <Figure title={title} name={title.toLowerCase().replaceAll(/\W+/g, "-")} data={() => ({ shape: array.shape, values: Array.from(values) })}>
      <p class="quiet">{rows} ↓ {columns} →</p>
      <HeatMap values={Array.from(values, paint)} rows={count(height)} columns={count(width, first)} scale="signed" space={540} every={Math.ceil(Math.max(height, width) / 24)} label={title} show={(r, c) => format(values[r * width + c])} />
    </Figure>
  );
}

const bound = (array: Array64) => Math.max(1e-12, ...Array.from(numbers(array), Math.abs));

function Alibi({ slopes, offsets }: { slopes: Array64; offsets: Array64 }) {
  const shown = Array.from(numbers(slopes), (slope) => slope.toPrecision(2)).join(", ");
  return <Matrix title={`ALiBi offsets, slopes ${shown}`} array={offsets} rows="head" columns="key, for the last query" paint={(value) => value / bound(offsets)} />;
}

function Positions() {
  const { value: found, error } = useAnswer<Angles>("positions", {});
  if (!found) return <Message error={error} />;
  const plain = numbers(found.frequencies.unscaled);
  const pairs = Array.from(plain, (_, n) => n);
  return (
    <>
      <p class="quiet">This model has {found.kind === "none" ? "no positions" : `${found.kind} positions`}. The figures of other kinds use its sizes.</p>
      <div class="columns" key={theme.value}>
        <Matrix title="Sinusoids" array={found.sinusoids} rows="position" columns="dimension" />
        <Matrix title={`Similarity of ${found.kind === "learned" ? "learned positions" : "sinusoids"}`} array={found.similarity} rows="position" columns="position" />
        <Matrix title="Rotary angles" array={found.angles} rows="position" columns="pair of dimensions, coloured by the cosine" paint={Math.cos} />
        {found.alibi && found.slopes && <Alibi slopes={found.slopes} offsets={found.alibi} />}
        {Object.entries(found.offsets ?? {}).map(([name, array]) => (
          <Matrix key={name} title={`Learned offsets, ${name}`} array={array} rows="head" columns="distance" first={-Math.floor(array.shape[1] / 2)} paint={(value) => value / bound(array)} />
        ))}
        <Curve title="log₁₀ of the rotary frequencies" axis="pair" steps={pairs} values={Array.from(plain, Math.log10)} />
        {Object.entries(found.frequencies).map(([name, array]) => name !== "unscaled" && (
          <Curve key={name} title={`${name}: share of the unscaled frequency`} axis="pair" steps={pairs} values={Array.from(numbers(array), (value, n) => value / plain[n])} />
        ))}
        {Object.entries(found.buckets ?? {}).map(([name, array]) => (
          <Curve key={name} title={`Buckets of relative positions, ${name}`} axis="distance" steps={Array.from(numbers(array), (_, n) => n - (array.shape[0] - 1) / 2)} values={numbers(array)} />
        ))}
      </div>
    </>
  );
}

function Masks() {
  const { value: found, error } = useAnswer<{ masks: Record<string, Array64> }>("masks", {});
  if (!found) return <Message error={error} />;
  return (
    <>
      <p class="quiet">Queries are rows, keys columns. A query attends to the bright keys.</p>
      <div class="columns">
        {Object.entries(found.masks).map(([name, array]) => {
          const [[height, width], values] = [array.shape, numbers(array)];
          return (
            <Figure key={name} title={name} name={`mask-${name.replaceAll(" ", "-")}`} data={() => ({ shape: array.shape, values: Array.from(values) })}>
              <HeatMap values={Array.from(values, (value) => 0.16 + 0.7 * value)} rows={count(height, width - height + 1)} columns={count(width, 1)} space={264} label={`Mask: ${name}`} show={(r, c) => (values[r * width + c] ? "attends" : "masked")} />
            </Figure>
          );
        })}
      </div>
    </>
  );
}

function Schedules() {
  const { value: found, error } = useAnswer<{ steps: Array64; peak: number; curves: Record<string, Array64> }>("schedules", {});
  if (!found) return <Message error={error} />;
  const data = () => ({ peak: found.peak, steps: Array.from(numbers(found.steps)), ...Object.fromEntries(Object.entries(found.curves).map(([name, array]) => [name, Array.from(numbers(array))])) });
  return (
    <Figure title={`Learning rates over 1,000 steps, warmup 100, peak ${format(found.peak)} = d_model^-0.5 · warmup^-0.5`} name="schedules" picture={false} data={data}>
      <div class="columns" key={theme.value}>
        {Object.entries(found.curves).map(([name, array]) => <Curve key={name} title={name} steps={numbers(found.steps)} values={numbers(array)} />)}
      </div>
    </Figure>
  );
}
