// Attention as lines: queries on the right, keys on the left, opacity by weight.

import { short, widest } from "./labels";

interface Props {
  values: ArrayLike<number>; // 0 to 1
  rows: string[];
  columns: string[];
  row: number; // only this query; -1: all
  label: string;
  onSelect: (row: number) => void;
}

const STEP = 22;
const cut = (each: string) => short(each, 32);

export function Lines({ values, rows, columns, row, label, onSelect }: Props) {
  const shown = rows.map((_, n) => n).filter((n) => row < 0 || row >= rows.length || n === row);
  const lines = shown.flatMap((r) =>
    columns.map((_, c) => ({ r, c, weight: values[r * columns.length + c] })).filter((line) => line.weight > 0.04),
  );
  const [left, right] = [columns, rows].map((each) => 16 + Math.ceil(widest(each.map(cut), 14)));
  const height = 12 + STEP * Math.max(rows.length, columns.length);
  return (
    <svg class="figure" width={left + 220 + right} height={height} role="img" aria-label={label}>
      {lines.map(({ r, c, weight }) => (
        <line key={`${r} ${c}`} x1={left} y1={STEP * (c + 0.5)} x2={left + 220} y2={STEP * (r + 0.5)} stroke="#d9730d" stroke-width={0.5 + 3 * weight} opacity={0.15 + 0.85 * weight} />
      ))}
      {columns.map((each, n) => (
        <text key={n} x={left - 8} y={STEP * (n + 0.5) + 4} text-anchor="end" fill="currentColor">{cut(each)}</text>
      ))}
      {rows.map((each, n) => (
        <text key={n} x={left + 228} y={STEP * (n + 0.5) + 4} class={n === row ? "chosen link" : "link"} fill="currentColor" onClick={() => onSelect(n === row ? -1 : n)}>
          {cut(each)}
        </text>
      ))}
    </svg>
  );
}
