// A part of a view with a title, its text for screen readers, and buttons that save it.

import type { ComponentChildren } from "preact";
import { useRef } from "preact/hooks";
import { toJson } from "../data";
import { save, savePng, saveSvg } from "../export";

interface Props {
  title: string;
  name: string; // of the saved file
  data?: () => unknown; // what the JSON file contains
  picture?: boolean | "canvas"; // whether the part has an svg.figure or a table, or a canvas, which has no SVG
  children: ComponentChildren;
}

export function Figure({ title, name, data, picture = true, children }: Props) {
  const part = useRef<HTMLElement>(null);
  return (
    <section class="figure-box" ref={part} aria-label={title}>
      <header>
        <h2>{title}</h2>
        <span class="buttons">
          {picture === true && <button onClick={() => part.current && saveSvg(part.current, name)}>SVG</button>}
          {picture && <button onClick={() => part.current && savePng(part.current, name)}>PNG</button>}
          {data && <button onClick={() => save(`${name}.json`, toJson(data()))}>JSON</button>}
        </span>
      </header>
      {children}
    </section>
  );
}

export function Message({ error }: { error?: string }) {
  return <p class={error ? "error" : "quiet"} role={error ? "alert" : "status"}>{error ?? "…"}</p>;
}
