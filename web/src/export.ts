// Save what a view shows as SVG, PNG or JSON.

/** Save a text or a blob as a file. */
export function save(name: string, content: Blob | string, type = "application/json"): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** The first picture in an element as SVG: an svg element, or a canvas with the labels around it. */
function asSvg(element: Element): string {
  const copy = (element.querySelector("svg.figure") as SVGElement).cloneNode(true) as SVGElement;
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

/** The picture with two pixels per unit. */
export async function savePng(element: Element, name: string): Promise<void> {
  const svg = element.querySelector("svg.figure") as SVGSVGElement;
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(asSvg(element))}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = 2 * svg.clientWidth;
  canvas.height = 2 * svg.clientHeight;
  const context = canvas.getContext("2d") as CanvasRenderingContext2D;
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((blob) => blob && save(`${name}.png`, blob));
}
