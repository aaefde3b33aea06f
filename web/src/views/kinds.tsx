// Buttons for the kind of attention, and fields for layer and head.

import { chosenKind, chosenPlace, head, kind, layer, type Model } from "../state";

export function KindButtons({ model }: { model: Model }) {
  const chosen = chosenKind(model);
  const [at] = chosenPlace(model, chosen);
  const field = (name: string, value: typeof layer, most: number) => (
    <label class="inline">{name}
      <input class="number" type="number" min={1} max={most} value={Math.max(0, Math.min(value.value, most - 1)) + 1}
        onInput={(event) => (value.value = Math.max(0, Math.min(most - 1, event.currentTarget.valueAsNumber - 1 || 0)))} />
    </label>
  );
  return (
    <div class="controls" role="group" aria-label="Head">
      {Object.entries(model.kinds).map(([name, title]) => (
        <button key={name} aria-pressed={name === chosen} onClick={() => (kind.value = name)} title={title}>{name}</button>
      ))}
      {field("layer", layer, model.layers[chosen])}
      <span class="inline">· blocks.{Math.max(0, at)}</span>
      {field("head", head, model.heads[chosen])}
    </div>
  );
}
