// A curve over training steps, or another axis, with a cursor that all curves share.

import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { Figure } from "./Figure";
import { format } from "./Table";

interface Props {
  title: string;
  steps: ArrayLike<number>;
  values: ArrayLike<number>;
  axis?: string;
}

export function Curve({ title, steps, values, axis: label = "step" }: Props) {
  const place = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const style = getComputedStyle(document.documentElement);
    const axis = { stroke: style.getPropertyValue("--quiet"), grid: { stroke: style.getPropertyValue("--edge"), width: 0.5 } };
    const last = steps.length - 1; // of the legend without a pointer
    const options: uPlot.Options = {
      width: 420,
      height: 220,
      cursor: { sync: { key: label } },
      scales: { x: { time: false } },
      series: [{ label, value: (_, step) => String(step ?? steps[last] ?? "–") }, { label: title, value: (_, value) => format(value ?? values[last] ?? NaN), stroke: style.getPropertyValue("--accent"), width: 1.5, points: { show: steps.length < 40 } }],
      axes: [axis, { ...axis, size: 64 }],
    };
    const plot = new uPlot(options, [Array.from(steps), Array.from(values)], place.current as HTMLElement);
    plot.setLegend({ idx: last }, false);
    return () => plot.destroy();
  }, [title, steps, values]);
  return (
    <Figure title={title} name={title.toLowerCase().replaceAll(/\W+/g, "-")} picture="canvas" data={() => ({ [label]: Array.from(steps), values: Array.from(values) })}>
      <div class="curve" ref={place} role="img" aria-label={`${title} by ${label}`} />
    </Figure>
  );
}
