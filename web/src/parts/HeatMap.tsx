// A matrix as colours: one pixel per cell on a canvas, enlarged inside an svg with labels. Hovering moves two rectangles.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { SCALES, css } from "../color";
import { measure, short, widest } from "./labels";

interface Props {
  values: ArrayLike<number>; // rows × columns; 0 to 1, or -1 to 1 if signed
  rows: string[];
  columns: string[];
  scale?: keyof typeof SCALES;
  row?: number; // selected
  label: string; // for screen readers
  show: (row: number, column: number) => string; // the text of a cell
  onSelect?: (row: number, column: number) => void;
  space?: number; // pixels of the longer side
  every?: number; // which labels are drawn
  ends?: [string, string]; // of the scale bar; none without them
  between?: string; // a row and a column
}

/** The matrix as a data URL, one pixel per cell. */
export function paint(values: ArrayLike<number>, rows: number, columns: number, scale: keyof typeof SCALES = "weight"): string {
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, columns);
  canvas.height = Math.max(1, rows);
  const context = canvas.getContext("2d") as CanvasRenderingContext2D;
  const image = context.createImageData(canvas.width, canvas.height);
  const colors = SCALES[scale];
  for (let n = 0; n < rows * columns; n++) {
    const value = scale === "signed" ? (values[n] + 1) * 127.5 : values[n] * 255;
    const at = 3 * Math.max(0, Math.min(255, Math.round(value)));
    image.data.set([colors[at], colors[at + 1], colors[at + 2], 255], 4 * n);
  }
  context.putImageData(image, 0, 0);
  return canvas.toDataURL();
}

const STEPS = Array.from({ length: 48 }, (_, n) => n); // of the scale bar
const BAR = 2 * STEPS.length; // pixels
export function HeatMap({ values, rows, columns, scale = "weight", row = -1, label, show, onSelect, space = 640, every = 1, ends, between = "→" }: Props) {
  const [cell, setCell] = useState<[number, number] | null>(null);
  const frame = useRef(0);
  const size = Math.max(1.5, Math.min(26, space / Math.max(rows.length, columns.length)));
  const hasLabels = size * every >= 9;
  const cut = (each: string) => short(each, 32);
  const [left, top] = useMemo(() => [rows, columns].map((each) => (hasLabels ? 10 + Math.ceil(widest(each.map(cut), 11)) : 8)), [rows, columns, hasLabels]);
  const [width, height] = [columns.length * size, rows.length * size];
  const low = ends ? Math.ceil(measure(ends[0], 11)) + 4 : 0;
  const source = useMemo(() => paint(values, rows.length, columns.length, scale), [values, rows.length, columns.length, scale]);
  useEffect(() => () => cancelAnimationFrame(frame.current), []);

  const find = (event: MouseEvent): [number, number] | null => {
    const box = (event.currentTarget as Element).getBoundingClientRect();
    const found: [number, number] = [Math.floor((event.clientY - box.top) / size), Math.floor((event.clientX - box.left) / size)];
    return found[0] >= 0 && found[0] < rows.length && found[1] >= 0 && found[1] < columns.length ? found : null;
  };
  const shown = cell ?? (row >= 0 && row < rows.length ? [row, -1] : null);
  return (
    <div class="heat">
      <svg class="figure" width={left + 8 + Math.max(width, ends ? low + BAR + 12 + measure(ends[1], 11) : 0)} height={top + height + (ends ? 26 : 8)} role="img" aria-label={label}>
        {hasLabels &&
          columns.map((each, n) => n % every === 0 && (
            <text key={n} class="tick" transform={`translate(${left + (n + 0.65) * size},${top - 6}) rotate(-90)`} fill="currentColor">
              {cut(each)}
            </text>
          ))}
        {hasLabels &&
          rows.map((each, n) => n % every === 0 && (
            <text key={n} class={n === row ? "tick chosen" : "tick"} x={left - 6} y={top + (n + 0.68) * size} text-anchor="end" fill="currentColor">
              {cut(each)}
            </text>
          ))}
        <image href={source} x={left} y={top} width={width} height={height} preserveAspectRatio="none" style="image-rendering:pixelated" />
        {ends && (
          <g transform={`translate(${left},${top + height + 10})`}>
            <text class="tick" y={9} fill="currentColor">{ends[0]}</text>
            {STEPS.map((n) => <rect key={n} x={low + 2 * n} width={2} height={10} fill={css(scale, (255 * n) / 47)} shape-rendering="crispEdges" />)}
            <text class="tick" x={low + BAR + 4} y={9} fill="currentColor">{ends[1]}</text>
          </g>
        )}
        {shown && <rect data-hover x={left} y={top + shown[0] * size} width={width} height={size} class="mark" />}
        {shown && shown[1] >= 0 && <rect data-hover x={left + shown[1] * size} y={top} width={size} height={height} class="mark" />}
        <rect
          data-hover
          x={left}
          y={top}
          width={width}
          height={height}
          fill="transparent"
          onMouseMove={(event) => {
            const found = find(event);
            cancelAnimationFrame(frame.current);
            frame.current = requestAnimationFrame(() => setCell(found));
          }}
          onMouseLeave={() => {
            cancelAnimationFrame(frame.current);
            setCell(null);
          }}
          onClick={(event) => {
            const found = find(event);
            if (found) onSelect?.(...found);
          }}
        />
      </svg>
      <p class="readout" aria-live="polite">
        {cell ? `${rows[cell[0]]} ${between} ${columns[cell[1]]}: ${show(...cell)}` : row >= 0 && row < rows.length ? rows[row] : "\u00a0"}
      </p>
    </div>
  );
}
