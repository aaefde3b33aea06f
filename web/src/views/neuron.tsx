// One query of a head: products with each key by dimension, scores, offsets, mask and softmax.

import { numbers, useAnswer, type Array64 } from "../data";
import { Figure, Message } from "../parts/Figure";
import { HeatMap } from "../parts/HeatMap";
import { Bar, Table, format } from "../parts/Table";
import { Tokens, position, visible } from "../parts/Tokens";
import { chosenKind, chosenPlace, layerName, sidesOf, textParams, type Model, type Trace } from "../state";
import { KindButtons } from "./kinds";

interface Answer extends Record<"query" | "keys" | "products" | "scores" | "capped" | "allowed" | "offsets" | "weights", Array64> {
  scale: number;
}

export function Neuron({ model }: { model: Model }) {
  const [params, kind] = [textParams(), chosenKind(model)];
  const { value: trace, error } = useAnswer<Trace>("trace", params.text ? params : null);
  const [queries, keys] = [trace?.queries[kind] ?? [], trace?.tokens[sidesOf(kind)[1]] ?? []];
  const [inLayer, inHead] = chosenPlace(model, kind).map((n) => Math.max(0, n));
  const at = { kind, layer: inLayer, head: inHead, query: position(queries.length) };
  const { value: found, error: failure } = useAnswer<Answer>("neuron", trace ? { ...params, ...at } : null);
  if (!trace) return <Message error={error ?? (params.text ? undefined : "Enter a text.")} />;
  const title = `${layerName(at.layer)}, head ${at.head + 1}: query ${visible(queries[at.query])}`;
  return (
    <>
      <KindButtons model={model} />
      <Tokens tokens={queries} label="Query" selected={at.query} />
      {found && !failure && found.weights.shape[0] === keys.length ? <Numbers found={found} keys={keys} title={title} /> : <Message error={failure} />}
    </>
  );
}

function Numbers({ found, keys, title }: { found: Answer; keys: string[]; title: string }) {
  const [products, scores, capped, allowed, offsets, weights] = [found.products, found.scores, found.capped, found.allowed, found.offsets, found.weights].map(numbers);
  const most = Math.max(1e-12, ...Array.from(products, Math.abs));
  const width = found.query.shape[0];
  const isCapped = scores.some((score, n) => score !== capped[n]);
  const hasOffsets = offsets.some((offset) => Math.abs(offset) > 1e-5);
  const columns = ["key", "q · k × scale", ...(isCapped ? ["soft cap"] : []), ...(hasOffsets ? ["+ offset"] : []), "mask", "softmax"];
  const rows = keys.map((key, n) => [
    visible(key), format(scores[n]), ...(isCapped ? [format(capped[n])] : []), ...(hasOffsets ? [format(offsets[n])] : []),
    allowed[n] ? "" : "−∞", <Bar value={weights[n]} />,
  ]);
  const dimensions = Array.from({ length: width }, (_, n) => String(n + 1));
  return (
    <div class="columns">
      <Figure title={title} name="neuron" data={() => ({ scale: found.scale, query: Array.from(numbers(found.query)), keys: Array.from(numbers(found.keys)), scores: Array.from(scores), offsets: Array.from(offsets), weights: Array.from(weights) })} picture={false}>
        <p class="quiet">scale = {format(found.scale)}, the model's; softmax over the keys that the mask leaves</p>
        <Table label="Scores of the keys" columns={columns} rows={rows} />
      </Figure>
      <Figure title="q × k of each dimension" name="products" data={() => Array.from(products)}>
        <HeatMap values={Array.from(products, (value) => value / most)} scale="signed" rows={keys} columns={dimensions} label="Products of query and keys by dimension"
          ends={[format(-most), format(most)]} show={(r, c) => format(products[r * width + c])} />
      </Figure>
    </div>
  );
}
