// The components of the model with shapes, parameters and FLOPs per token; a click opens a component.

import { Figure } from "../parts/Figure";
import { component, type Component, type Model } from "../state";

const count = (n: number) => n.toLocaleString("en");

export function Architecture({ model }: { model: Model }) {
  const path = open(model.tree, component.value);
  const shown = path[path.length - 1];
  const layer = path.map((node) => /^layers? [\d, to]+(?= · )/.exec(node.title)?.[0]).find(Boolean);
  return (
    <div class="columns">
      <Figure title={`${model.name}, ${model.shape}: ${count(model.parameters)} parameters`} name="architecture" data={() => model} picture={false}>
        <dl class="sizes">
          {Object.entries(model.sizes).map(([name, size]) => (
            <div key={name}><dt>{name}</dt><dd>{count(size)}</dd></div>
          ))}
        </dl>
        <Tree node={model.tree} total={model.parameters} chosen={path} />
      </Figure>
      <Figure title={layer ? `${layer} · ${shown.name}` : shown.name || "the model"} name={shown.name || "model"} data={() => shown} picture={false}>
        <table class="facts">
          <tbody>
            <tr><th scope="row">class</th><td>{shown.kind}</td></tr>
            <tr><th scope="row">parameters</th><td>{count(shown.parameters)}</td></tr>
            <tr><th scope="row">FLOPs per token</th><td>{count(shown.flops)}</td></tr>
            {shown.flops_per_key > 0 && <tr><th scope="row">FLOPs per token and key</th><td>{count(shown.flops_per_key)}</td></tr>}
            {Object.entries(shown.tensors).map(([name, shape]) => (
              <tr key={name}><th scope="row">{name}</th><td>{shape.map(count).join(" × ")}</td></tr>
            ))}
            {shown.children.map((child) => (
              <tr key={child.name}>
                <th scope="row"><button class="text" onClick={() => (component.value = child.name)}>{child.title}</button></th>
                <td>{count(child.parameters)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Figure>
    </div>
  );
}

/** The components from the model to the one with that name. */
function open(tree: Component, name: string): Component[] {
  const path = [tree];
  for (;;) {
    const last = path[path.length - 1];
    const next = last.children.find((child) => name === child.name || name.startsWith(`${child.name}.`));
    if (!next) return path;
    path.push(next);
  }
}

function Tree({ node, total, chosen }: { node: Component; total: number; chosen: Component[] }) {
  return (
    <ul class="tree">
      {node.children.map((child) => {
        const isOpen = chosen.includes(child);
        const isLast = chosen[chosen.length - 1] === child;
        return (
          <li key={child.name}>
            <button class="text" aria-expanded={child.children.length ? isOpen : undefined} aria-current={isLast}
              onClick={() => (component.value = isLast ? node.name : child.name)}>
              {child.title}
            </button>
            <span class="bar" style={{ width: `${(120 * child.parameters) / Math.max(1, total)}px` }} />
            <span class="quiet">{count(child.parameters)}</span>
            {isOpen && child.children.length > 0 && <Tree node={child} total={total} chosen={chosen} />}
          </li>
        );
      })}
    </ul>
  );
}
