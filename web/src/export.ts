// Save what a view shows as SVG, PNG or JSON.

/** Save a text or a blob as a file. */
export function save(name: string, content: Blob | string, type = "application/json"): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** A table as an svg element: the boxes and texts of its cells where the browser draws them. */
function drawTable(table: Element): SVGElement {
  const create = (parent: Element, name: string, values: Record<string, string | number>) => {
    const made = parent.appendChild(document.createElementNS("http://www.w3.org/2000/svg", name));
    for (const [key, value] of Object.entries(values)) made.setAttribute(key, String(value));
    return made as SVGElement;
  };
  const { left, top, width, height } = table.getBoundingClientRect();
  const svg = create(document.createElement("div"), "svg", { width, height });
  for (const cell of table.querySelectorAll("th, td")) {
    const shown = cell.querySelector("button") ?? cell;
    const [box, style] = [shown.getBoundingClientRect(), getComputedStyle(shown)];
    create(svg, "rect", { x: box.left - left, y: box.top - top, width: box.width, height: box.height, fill: style.backgroundColor });
    const [x, y] = [box.left - left + 7, box.top - top + box.height / 2];
    create(svg, "text", { x, y, fill: style.color, "dominant-baseline": "central" }).textContent = cell.textContent;
  }
  return svg;
}

/** The first picture in an element as SVG: an svg element, or else a table. */
function asSvg(element: Element): string {
  const copy = (element.querySelector("svg.figure")?.cloneNode(true) ?? drawTable(element.querySelector("table") as Element)) as SVGElement;
  const style = getComputedStyle(document.body);
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("color", style.color);
  copy.setAttribute("style", `background:${style.backgroundColor};font:14px system-ui,sans-serif;color:${style.color}`);
  for (const part of copy.querySelectorAll(".tick")) part.setAttribute("font-size", "11");
  for (const part of copy.querySelectorAll("[data-hover]")) part.remove();
  return new XMLSerializer().serializeToString(copy);
}

export function saveSvg(element: Element, name: string): void {
  save(`${name}.svg`, asSvg(element), "image/svg+xml");
}

/** The picture with two pixels per unit; a curve with the pixels of its canvas and its title. */
export async function savePng(element: Element, name: string): Promise<void> {
  const curve = element.querySelector<HTMLCanvasElement>(".curve canvas");
  const canvas = document.createElement("canvas");
  const context = canvas.getContext("2d") as CanvasRenderingContext2D;
  if (curve) {
    const style = getComputedStyle(document.body);
    [canvas.width, canvas.height] = [curve.width, curve.height + 32];
    context.fillStyle = style.backgroundColor;
    context.fillRect(0, 0, canvas.width, canvas.height);
    [context.fillStyle, context.font] = [style.color, "bold 14px sans-serif"];
    context.fillText(element.getAttribute("aria-label") ?? "", 8, 22);
    context.drawImage(curve, 0, 32);
  } else {
    const image = new Image();
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(asSvg(element))}`;
    await image.decode();
    [canvas.width, canvas.height] = [2 * image.naturalWidth, 2 * image.naturalHeight];
    context.drawImage(image, 0, 0, canvas.width, canvas.height);
  }
  canvas.toBlob((blob) => blob && save(`${name}.png`, blob));
}
