// Colour scales that people with colour-vision deficiency can read (viridis; blue to orange).

const VIRIDIS = ["#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"];
const SIGNED = ["#2166ac", "#67a9cf", "#d1e5f0", "#f7f7f7", "#fddbc7", "#ef8a62", "#b2500c"];

function table(stops: string[]): Uint8ClampedArray {
  const rgb = stops.map((stop) => [1, 3, 5].map((at) => parseInt(stop.slice(at, at + 2), 16)));
  const found = new Uint8ClampedArray(256 * 3);
  for (let n = 0; n < 256; n++) {
    const at = (n / 255) * (rgb.length - 1);
    const low = Math.min(Math.floor(at), rgb.length - 2);
    for (let c = 0; c < 3; c++) found[n * 3 + c] = rgb[low][c] + (at - low) * (rgb[low + 1][c] - rgb[low][c]);
  }
  return found;
}

/** 256 colours: 0 to 255 for weights, or -1 to 1 for signed values. */
export const SCALES = { weight: table(VIRIDIS), signed: table(SIGNED) };

/** Of one colour of a scale, n from 0 to 255. */
export function css(scale: keyof typeof SCALES, n: number): string {
  const at = Math.max(0, Math.min(255, Math.round(n))) * 3;
  return `rgb(${SCALES[scale].slice(at, at + 3).join(",")})`;
}
