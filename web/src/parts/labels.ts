// Labels of figures: shortened texts and their widths.

const pen = document.createElement("canvas").getContext("2d") as CanvasRenderingContext2D;

/** The width of a text in bold letters of a size, in pixels. */
export function measure(text: string, size: number): number {
  pen.font = `bold ${size}px system-ui, sans-serif`;
  return pen.measureText(text).width;
}

/** The text, or its beginning; a space for a blank. */
export const short = (text: string, most: number) => (!text.trim() ? "␣" : text.length > most ? `${text.slice(0, most - 1)}…` : text);

/** The width of the widest of some labels. */
export const widest = (labels: string[], size: number) => labels.reduce((most, each) => Math.max(most, measure(each, size)), 0);
