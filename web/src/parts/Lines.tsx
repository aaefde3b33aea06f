// Attention as lines: queries on the right, keys on the left, opacity by weight.

interface Props {
  values: ArrayLike<number>; // 0 to 255
  rows: string[];
  columns: string[];
  row: number; // only this query; -1: all
  label: string;
  onSelect: (row: number) => void;
}

const STEP = 22;

export function Lines({ values, rows, columns, row, label, onSelect }: Props) {
  const shown = rows.map((_, n) => n).filter((n) => row < 0 || row >= rows.length || n === row);
  const lines = shown.flatMap((r) =>
    columns.map((_, c) => ({ r, c, weight: values[r * columns.length + c] / 255 })).filter((line) => line.weight > 0.04),
  );
  const height = 12 + STEP * Math.max(rows.length, columns.length);
  return (
    <svg class="figure" width={560} height={height} role="img" aria-label={label}>
      {lines.map(({ r, c, weight }) => (
        <line key={`${r} ${c}`} x1={170} y1={STEP * (c + 0.5)} x2={390} y2={STEP * (r + 0.5)} stroke="#d9730d" stroke-width={0.5 + 3 * weight} opacity={0.15 + 0.85 * weight} />
      ))}
      {columns.map((each, n) => (
        <text key={n} x={162} y={STEP * (n + 0.5) + 4} text-anchor="end" fill="currentColor">{each.slice(0, 24)}</text>
      ))}
      {rows.map((each, n) => (
        <text key={n} x={398} y={STEP * (n + 0.5) + 4} class={n === row ? "chosen link" : "link"} fill="currentColor" onClick={() => onSelect(n === row ? -1 : n)}>
          {each.slice(0, 24)}
        </text>
      ))}
    </svg>
  );
}
