// Roles of heads over a corpus: a grid of layers and heads, and a table with examples.

import { css } from "../color";
import { isAvailable, useAnswer } from "../data";
import { Figure, Message } from "../parts/Figure";
import { Bar, Table } from "../parts/Table";
import { visible } from "../parts/Tokens";
import { chosenKind, head, kind, layer, layerName, role, row, target, text, view, type Model } from "../state";

interface Example {
  text: string;
  target: string | null;
  row: number;
  tokens: [string, string];
}

interface Found {
  kind: string;
  layer: number;
  head: number;
  role: string;
  relation: string;
  found: boolean;
  share: number;
  low: number;
  high: number;
  trials: number;
  baseline: number;
  examples: Example[];
}

export function Roles({ model }: { model: Model }) {
  const { value: report, error } = useAnswer<{ lines: number; skipped: number; heads: Found[] }>("roles", {});
  if (!report) return <Message error={error} />;
  const names = [...new Set(report.heads.map((each) => each.role))];
  const chosen = names.includes(role.value) ? role.value : "";
  const heads = report.heads.filter((each) => !chosen || each.role === chosen);
  const listed = heads.filter((each) => each.found || (chosen && each.kind === kind.value && each.layer === layer.value && each.head === head.value));
  return (
    <div class="stack">
      <Figure title={`Roles of heads over ${report.lines.toLocaleString("en")} lines${chosen && `: ${chosen}`}`} name="roles" data={() => report}>
        <div class="controls" role="group" aria-label="Role">
          {["", ...names].map((name) => (
            <button key={name} aria-pressed={name === chosen} onClick={() => (role.value = name)}>{name || "all"}</button>
          ))}
        </div>
        <Grid model={model} heads={heads} isAll={!chosen} />
        <p class="quiet">Colour: share of the queries whose largest weight is where the role says; {chosen ? "framed: heads that have it" : "only heads that have a role; the letters are its beginning"}.</p>
      </Figure>
      <Figure title="Heads with a role" name="heads-with-a-role" picture={false} data={() => listed}>
        {!listed.some((each) => each.found) && <p>{chosen ? "No head has this role." : "No head has a role."}</p>}
        <Table label="Roles" columns={["role", "relation", "head", "share", "95 %", "best offset", "queries", "examples"]} selected={listed.findIndex(isChosen)}
          rows={listed.map((each) => [
            each.found ? each.role : `${each.role}: not found in the selected head`, each.relation, <button class="text" title={`${layerName(each.layer)}, head ${each.head + 1}`} onClick={() => choose(each)}>{each.kind} {each.layer + 1}.{each.head + 1}</button>, <Bar value={each.share} />,
            `${each.low.toFixed(2)} – ${each.high.toFixed(2)}`, each.baseline.toFixed(2), each.trials.toLocaleString("en"),
            each.examples.map((example, n) => <ExampleButton key={n} of={each} example={example} />),
          ])} />
      </Figure>
    </div>
  );
}

const isChosen = (each: Found) => each.kind === kind.value && each.layer === layer.value && each.head === head.value;

function choose(each: Found) {
  [kind.value, layer.value, head.value] = [each.kind, each.layer, each.head];
}

/** Opens the attention of the head on the line of the example. */
function ExampleButton({ of, example }: { of: Found; example: Example }) {
  const params = { text: example.text, target: example.target };
  const open = () => {
    choose(of);
    [text.value, target.value, row.value, view.value] = [example.text, example.target ?? "", example.row, "attention"];
  };
  return (
    <button class="text" disabled={!isAvailable("attention", { ...params, kind: of.kind, layer: of.layer })} title={example.text} onClick={open}>
      {visible(example.tokens[0])} {of.kind === "cross" ? "attends to" : "→"} {visible(example.tokens[1])}
    </button>
  );
}

const SIZE = 26;

function Grid({ model, heads, isAll }: { model: Model; heads: Found[]; isAll: boolean }) {
  const kinds = Object.keys(model.kinds);
  const tops = kinds.map((_, n) => kinds.slice(0, n).reduce((sum, each) => sum + model.layers[each] * SIZE + 30, 0));
  const [width, height] = [Math.max(260, 40 + SIZE * Math.max(...kinds.map((each) => model.heads[each]))), tops[tops.length - 1] + model.layers[kinds[kinds.length - 1]] * SIZE + 30];
  const best = (side: string, l: number, h: number) =>
    heads.filter((each) => each.kind === side && each.layer === l && each.head === h && (!isAll || each.found)).sort((a, b) => b.share - a.share)[0];
  return (
    <svg class="figure" width={width} height={height} role="img" aria-label={`Roles by layer and head; ${chosenKind(model)} ${layer.value + 1}.${head.value + 1} is chosen`}>
      {kinds.map((side, n) => (
        <g key={side} transform={`translate(0,${tops[n]})`}>
          <text class="tick" x={0} y={18} fill="currentColor">{side}: layers down, heads across</text>
          {Array.from({ length: model.layers[side] * model.heads[side] }, (_, at) => {
            const [l, h] = [Math.floor(at / model.heads[side]), at % model.heads[side]];
            const each = best(side, l, h);
            const share = each?.share ?? 0;
            return (
              <g key={at} class="link" transform={`translate(${20 + h * SIZE},${26 + l * SIZE})`} onClick={() => { [kind.value, layer.value, head.value] = [side, l, h]; }}>
                <rect width={SIZE - 2} height={SIZE - 2} fill={css("weight", 255 * share)} />
                {each && isAll && <text class="tick" x={2} y={16} fill={share > 0.6 ? "#000000" : "#ffffff"}>{each.role.slice(0, 3)}</text>}
                {each?.found && !isAll && <rect class="mark" width={SIZE - 2} height={SIZE - 2} />}
                <title>{`${side} ${l + 1}.${h + 1} (${layerName(l)}, head ${h + 1})${each ? `: ${each.role} ${each.relation} ${share.toFixed(2)}` : ""}`}</title>
              </g>
            );
          })}
        </g>
      ))}
    </svg>
  );
}
