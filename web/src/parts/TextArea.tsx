// A text of one or more lines. Line breaks are part of tokens, and an input would drop them.

import { useLayoutEffect, useRef } from "preact/hooks";

interface Props {
  value: string;
  label?: string; // for screen readers, if no label element has it
  disabled?: boolean;
  placeholder?: string;
  title?: string;
  short?: boolean;
  onType?: (value: string) => void;
  onEnd: (value: string) => void; // when the field is left, or on Enter; Enter with Shift adds a line
}

const MOST = 6; // lines that are shown at once

export function TextArea({ value, label, disabled, placeholder, title, short, onType, onEnd }: Props) {
  const field = useRef<HTMLTextAreaElement>(null);
  // A field of the browser has \n for every line break; the text keeps its own.
  const end = /\r\n?|\n/.exec(value)?.[0] ?? "\n";
  const typed = (event: Event) => (event.currentTarget as HTMLTextAreaElement).value.replaceAll("\n", end);
  const fit = () => {
    const lines = field.current?.value.split("\n").length ?? 1;
    if (field.current) field.current.rows = Math.min(MOST, lines);
  };
  useLayoutEffect(fit, [value]);
  return (
    <textarea ref={field} class={short ? "field short" : "field"} rows={1} value={value} aria-label={label} disabled={disabled} placeholder={placeholder} title={title}
      onInput={(event) => { fit(); onType?.(typed(event)); }}
      onChange={(event) => onEnd(typed(event))}
      onKeyDown={(event) => {
        if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
        event.preventDefault();
        onEnd(typed(event));
      }} />
  );
}
