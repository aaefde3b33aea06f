"""Scripts, and the words that texts are compared by."""

from __future__ import annotations

import pytest

from trifold.scripts import main_script, split_words, unicode_words

SCRIPTS = {
    "": "latin",
    "12, 34!": "latin",
    "A dog runs.": "latin",
    "Việt Nam rất đẹp, Größe": "latin",
    "Собака бежит": "spaced",
    "한국어 문장": "spaced",
    "हिन्दी में लिखा": "spaced",
    "مرحبا بالعالم": "spaced",
    "狗": "han",
    "狗在跑": "han",
    "请在 GitHub 上查看 TensorFlow 的说明": "han",
    "これは本です": "kana",
    "東京大学は東京都文京区本郷": "kana",
    "ｶﾀｶﾅ": "kana",
    "สุนัขวิ่ง": "unspaced",
    "བོད་ཡིག": "unspaced",
    "ខ្មែរ": "unspaced",
    "The city of 東京 is large": "latin",
}


@pytest.mark.parametrize("text", SCRIPTS)
def test_the_script_of_most_words_or_characters(text: str) -> None:
    assert main_script([text]) == main_script(["", text, ""]) == SCRIPTS[text]


def test_many_texts_have_the_script_of_most() -> None:
    assert main_script(["狗在跑", "A dog runs", "猫在睡"]) == "han"
    assert main_script(["狗", "A dog runs", "The cat sleeps"]) == "latin"
    assert main_script(["東京大学", "これは本です"]) == "kana"


def test_unicode_words_keep_marks_and_split_scripts_without_spaces() -> None:
    assert unicode_words("Die Größe, 12!") == ["die", "größe", "12"]
    assert unicode_words("हिन्दी में।") == ["हिन्दी", "में"]
    assert unicode_words("«Ёлка» — праздник") == ["ёлка", "праздник"]
    assert unicode_words("می\u200cروم خانه") == ["میروم", "خانه"]
    assert unicode_words("我爱 BERT。") == ["我", "爱", "bert"]
    assert split_words("我爱 BERT。") == ["我", "爱", "BERT。"]
