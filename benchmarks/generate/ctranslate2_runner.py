"""CTranslate2's Generator and Translator."""

from __future__ import annotations

import ctranslate2
from measure import Write, arguments, measure
from setting import Work

FORMS = {"fp32": "float32", "int8": "int8"}


def main() -> None:
    args = arguments(__doc__)
    form = FORMS[args.precision]

    def writer(work: Work) -> Write:
        folder = str(args.folder / f"{work.model}-ctranslate2-{form}")
        options = {
            "device": "cpu",
            "compute_type": form,
            "inter_threads": 1,
            "intra_threads": args.threads,
        }
        if work.model == "gpt2":
            generator = ctranslate2.Generator(folder, **options)

            def go_on(rows: list[list[int]]) -> list[list[int]]:
                found = generator.generate_batch(
                    [[f"t{i}" for i in row] for row in rows],
                    max_length=work.new,
                    min_length=work.new,
                    sampling_topk=1,
                    include_prompt_in_result=False,
                )
                return [one.sequences_ids[0] for one in found]

            return go_on
        translator = ctranslate2.Translator(folder, **options)

        def translate(rows: list[list[int]]) -> list[list[int]]:
            found = translator.translate_batch(
                [[f"t{i}" for i in row] for row in rows],
                beam_size=work.beams,
                max_decoding_length=work.new,
                min_decoding_length=work.new,
            )
            return [[int(token[1:]) for token in one.hypotheses[0]] for one in found]

        return translate

    measure("CTranslate2", args, writer)


if __name__ == "__main__":
    main()
