// The logit lens: the prediction of every layer at every position.

import { css } from "../color";
import { numbers, useAnswer, type Array64 } from "../data";
import { Figure, Message } from "../parts/Figure";
import { Bar, Table } from "../parts/Table";
import { position, visible } from "../parts/Tokens";
import { layerName, row, textParams, type Model, type Trace } from "../state";

interface Answer {
  tokens: string[][][]; // (layers + 1, positions, top)
  probabilities: Array64;
  masks: number[];
}

export function Lens(_: { model: Model }) {
  const params = textParams();
  const { value: trace, error } = useAnswer<Trace>("trace", params.text ? params : null);
  const { value: found, error: failure } = useAnswer<Answer>("lens", params.text ? params : null);
  if (!trace || !found) return <Message error={error ?? failure ?? (params.text ? undefined : "Enter a text.")} />;
  const [layers, positions, top] = found.probabilities.shape;
  const values = numbers(found.probabilities);
  const tokens = trace.tokens[trace.side];
  const isWhole = positions === 1 && tokens.length > 1; // a class of the whole input
  const shown = found.masks.length ? found.masks : Array.from({ length: positions }, (_, n) => n);
  const chosen = isWhole ? 0 : shown.includes(position(tokens.length)) ? position(tokens.length) : shown[shown.length - 1];
  const name = (n: number) => (n === 0 ? "embeddings" : layerName(n - 1, "states"));
  const columns = ["after", ...shown.map((at) => (isWhole ? "class" : visible(tokens[at])))];
  const cells = Array.from({ length: layers }, (_, n) => layers - 1 - n).map((n) => [
    name(n),
    ...shown.map((at) => {
      const share = values[(n * positions + at) * top];
      return (
        <button class="token wide" aria-pressed={at === chosen} title={share.toFixed(4)} onClick={() => (row.value = at)}
          style={{ background: css("weight", 255 * share), color: share > 0.6 ? "#111" : "#fff" }}>
          {visible(found.tokens[n][at][0])}
        </button>
      );
    }),
  ]);
  const best = Array.from({ length: layers }, (_, n) => layers - 1 - n).map((n) => [
    name(n),
    ...found.tokens[n][chosen].map((token, k) => <span>{visible(token)} <Bar value={values[(n * positions + chosen) * top + k]} /></span>),
  ]);
  return (
    <div class="stack">
      <Figure title="Best prediction after each layer" name="lens" data={() => ({ ...found, probabilities: Array.from(values), shape: found.probabilities.shape })}>
        <p class="quiet">{found.masks.length ? "Predictions of the masked tokens." : isWhole ? "" : "Below each token: what its position predicts."} Brighter is more probable.</p>
        <Table label="Predictions by layer" columns={columns} rows={cells} />
      </Figure>
      <Figure title={isWhole ? "Classes" : `At ${visible(tokens[chosen])}, position ${chosen + 1}`} name="lens-position" picture={false}
        data={() => found.tokens.map((each, n) => ({ layer: n, tokens: each[chosen], probabilities: Array.from(values.slice((n * positions + chosen) * top, (n * positions + chosen + 1) * top)) }))}>
        <Table label="Best predictions" columns={["after", ...Array.from({ length: top }, (_, n) => String(n + 1))]} rows={best} />
      </Figure>
    </div>
  );
}
