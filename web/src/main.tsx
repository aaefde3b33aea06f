// The page: the text at the top, the views as tabs, and the keys.

import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { isLive, request, start, waiting } from "./data";
import { chosenKind, head, kind, layer, row, target, text, theme, view, writeFragment, type Model } from "./state";
import "uplot/dist/uPlot.min.css";
import "./theme.css";
import { VIEWS } from "./views";

const KEYS = [
  ["1 … 9, 0", "choose a view"],
  ["← →", "previous or next head"],
  ["↑ ↓", "previous or next layer"],
  ["[ ]", "previous or next token"],
  ["k", "next kind of attention"],
  ["d", "dark or light"],
  ["?", "this list"],
];

function Page({ model }: { model: Model }) {
  const [hasHelp, setHelp] = useState(false);
  const names = Object.keys(VIEWS).filter((name) => VIEWS[name].applies?.(model) ?? true);
  const chosen = names.includes(view.value) ? view.value : names[0];
  const Chosen = VIEWS[chosen].show;
  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      const isField = (event.target as Element).matches("input, textarea, select");
      const scrolls = event.key.startsWith("Arrow") && (!VIEWS[view.value]?.hasHeads || (event.target as Element).closest(".scroll, .figure-box:focus"));
      if (isField || scrolls || event.ctrlKey || event.metaKey || event.altKey) return;
      const side = chosenKind(model);
      const step = (by: number, at: typeof head, size: number) => (at.value = (Math.max(0, at.value) + by + size) % size);
      const moves: Record<string, () => unknown> = {
        ArrowLeft: () => step(-1, head, model.heads[side]),
        ArrowRight: () => step(1, head, model.heads[side]),
        ArrowUp: () => step(-1, layer, model.layers[side]),
        ArrowDown: () => step(1, layer, model.layers[side]),
        "[": () => (row.value = Math.max(-1, row.value - 1)),
        "]": () => (row.value += 1),
        k: () => {
          const kinds = Object.keys(model.kinds);
          kind.value = kinds[(kinds.indexOf(kind.value) + 1) % kinds.length];
        },
        d: toggleTheme,
        "?": () => setHelp((is) => !is),
        Escape: () => setHelp(false),
      };
      const number = "1234567890".indexOf(event.key);
      if (number >= 0 && number < names.length) view.value = names[number];
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
        <TextField model={model} />
        <span class="buttons">
          <button onClick={toggleTheme} aria-label="Dark or light">◐</button>
          <button onClick={() => setHelp(!hasHelp)} aria-expanded={hasHelp} aria-label="Keys">?</button>
        </span>
      </header>
      <nav aria-label="Views">
        {names.map((name, n) => (
          <button key={name} aria-current={name === chosen ? "page" : undefined} onClick={() => (view.value = name)}>
            <kbd>{(n + 1) % 10}</kbd> {VIEWS[name].title}
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

function TextField({ model }: { model: Model }) {
  const timer = useRef(0);
  const later = (change: () => void) => {
    clearTimeout(timer.current);
    timer.current = window.setTimeout(change, 400);
  };
  return (
    <form onSubmit={(event) => event.preventDefault()} aria-busy={waiting.value > 0}>
      <label>{model.grid ? "Image" : "Text"}
        <input value={text.value} disabled={!isLive} onInput={(event) => { const { value } = event.currentTarget; later(() => (text.value = value)); }} />
      </label>
      {model.shape !== "encoder" && (
        <label>Output
          <input value={target.value} disabled={!isLive} placeholder="the model's own" onInput={(event) => { const { value } = event.currentTarget; later(() => (target.value = value)); }} />
        </label>
      )}
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
