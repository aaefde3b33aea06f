// A table with a heading; cells are text or elements.

import type { ComponentChildren } from "preact";

interface Props {
  label: string;
  columns: ComponentChildren[];
  rows: ComponentChildren[][];
  selected?: number;
}

export function Table({ label, columns, rows, selected }: Props) {
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={label}>
      <table class="data">
        <thead>
          <tr>{columns.map((each, n) => <th key={n} scope="col">{each}</th>)}</tr>
        </thead>
        <tbody>
          {rows.map((cells, n) => (
            <tr key={n} class={n === selected ? "chosen" : undefined}>
              {cells.map((cell, at) => <td key={at}>{cell}</td>)}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** A number with four decimals, or in powers of ten. */
export function format(value: number): string {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "–" : value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-4 || size >= 1e5) ? value.toExponential(2) : value.toFixed(4);
}

/** A bar from 0 to 1 with its number. */
export function Bar({ value }: { value: number }) {
  return (
    <span class="share">
      <span style={{ width: `${Math.round(80 * value)}px` }} /> {value.toFixed(4)}
    </span>
  );
}
