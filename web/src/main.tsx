// The page: the text at the top, the views as tabs, and the keys.

import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { isLive, request, start, waiting } from "./data";
import { chosenKind, chosenPlace, head, kind, layer, row, target, text, theme, view, writeFragment, type Model } from "./state";
import { TextArea } from "./parts/TextArea";
import "uplot/dist/uPlot.min.css";
import "./theme.css";
import { VIEWS } from "./views";
import { countRows } from "./weights";

const KEYS = [
  ["1 … 9, 0", "choose a view"],
  ["← →", "previous or next head"],
  ["↑ ↓", "previous or next layer"],
  ["[ ]", "previous or next token"],
  ["k", "next kind of attention"],
  ["d", "dark or light"],
  ["Shift Enter", "a line break in a text"],
  ["?", "this list"],
];

function Page({ model }: { model: Model }) {
  const [hasHelp, setHelp] = useState(false);
  const all = Object.keys(VIEWS); // their keys are the same for every model
  const names = all.filter((name) => VIEWS[name].applies?.(model) ?? true);
  const chosen = names.includes(view.value) ? view.value : names[0];
  const Chosen = VIEWS[chosen].show;
  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      const isField = (event.target as Element).matches("input, textarea, select");
      const scrolls = event.key.startsWith("Arrow") && (!VIEWS[view.value]?.hasHeads || (event.target as Element).closest(".scroll, .figure-box:focus"));
      if (isField || scrolls || event.ctrlKey || event.metaKey || event.altKey) return;
      const side = chosenKind(model);
      const [inLayer, inHead] = chosenPlace(model, side).map((n) => Math.max(0, n));
      const [layers, heads] = [model.layers[side], model.heads[side]];
      const moveRow = (by: number) =>
        countRows(model).then((count) => (row.value = Math.max(-1, Math.min(row.value, by < 0 ? count : count - 1 - by) + by)), () => {});
      const moves: Record<string, () => unknown> = {
        ArrowLeft: () => (head.value = (inHead - 1 + heads) % heads),
        ArrowRight: () => (head.value = (inHead + 1) % heads),
        ArrowUp: () => (layer.value = (inLayer - 1 + layers) % layers),
        ArrowDown: () => (layer.value = (inLayer + 1) % layers),
        "[": () => moveRow(-1),
        "]": () => moveRow(1),
        k: () => {
          const kinds = Object.keys(model.kinds);
          kind.value = kinds[(kinds.indexOf(kind.value) + 1) % kinds.length];
        },
        d: toggleTheme,
        "?": () => setHelp((is) => !is),
        Escape: () => setHelp(false),
      };
      const number = "1234567890".indexOf(event.key);
      if (names.includes(all[number])) view.value = all[number];
      else if (moves[event.key]) moves[event.key]();
      else return;
      event.preventDefault();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, [model]);
  return (
    <>
      <header class="top">
        <h1>trifold look <span class="quiet">{start.models[0] || model.name}</span></h1>
        <Fields model={model} />
        <span class="buttons">
          <button onClick={toggleTheme} aria-label="Dark or light">◐</button>
          <button onClick={() => setHelp(!hasHelp)} aria-expanded={hasHelp} aria-label="Keys">?</button>
        </span>
      </header>
      <nav aria-label="Views">
        {names.map((name) => (
          <button key={name} aria-current={name === chosen ? "page" : undefined} onClick={() => (view.value = name)}>
            <kbd>{(all.indexOf(name) + 1) % 10}</kbd> {VIEWS[name].title}
          </button>
        ))}
      </nav>
      {hasHelp && (
        <dl class="help">
          {KEYS.map(([keys, what]) => <div key={keys}><dt><kbd>{keys}</kbd></dt><dd>{what}</dd></div>)}
        </dl>
      )}
      <main><Chosen model={model} /></main>
    </>
  );
}

/** A text that changes the state when typing pauses, or ends. */
function Field({ label, of, placeholder }: { label: string; of: typeof text; placeholder?: string }) {
  const timer = useRef(0);
  const now = (value: string) => {
    clearTimeout(timer.current);
    of.value = value;
  };
  const later = (value: string) => {
    clearTimeout(timer.current);
    timer.current = window.setTimeout(() => now(value), 400);
  };
  return (
    <label>{label}
      <TextArea value={of.value} disabled={!isLive} placeholder={placeholder} onType={later} onEnd={now} />
    </label>
  );
}

function Fields({ model }: { model: Model }) {
  return (
    <form onSubmit={(event) => event.preventDefault()} aria-busy={waiting.value > 0}>
      <Field label={model.grid ? "Image" : "Text"} of={text} />
      {model.target === "Class" && (
        <label>Class
          <select value={target.value} disabled={!isLive} onChange={(event) => (target.value = event.currentTarget.value)}>
            {["", ...model.classes].map((name) => <option key={name} value={name}>{name || "none"}</option>)}
          </select>
        </label>
      )}
      {model.target && model.target !== "Class" && <Field label={model.target} of={target} placeholder={model.shape === "encoder-decoder" ? "the model's own" : "none"} />}
      <span class={waiting.value ? "spinner on" : "spinner"} aria-hidden="true" />
    </form>
  );
}

function toggleTheme(): void {
  const isDark = theme.value === "dark" || (theme.value === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  theme.value = isDark ? "light" : "dark";
}

async function show(): Promise<void> {
  const root = document.getElementById("page") as HTMLElement;
  try {
    const model = await request<Model>("model", {});
    text.value = start.text;
    target.value = start.target ?? "";
    kind.value = Object.keys(model.kinds).at(-1) as string;
    writeFragment();
    theme.subscribe((value) => (document.documentElement.dataset.theme = value));
    addEventListener("hashchange", () => location.reload());
    render(<Page model={model} />, root);
  } catch (error) {
    root.textContent = (error as Error).message;
  }
}

void show();
