"""The embedded model: its folder loads, its template keeps Qwen3's wording, its recipe gives the same every time."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from random import Random
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

FOLDER = Path(__file__).parents[2] / "models" / "tiny_policy"
RECIPE = FOLDER / "recipe"


def load(name: str) -> ModuleType:
    """A module of the recipe, which is run as scripts and is no package."""
    spec = importlib.util.spec_from_file_location(name, RECIPE / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Of so small a model a second thread makes nothing faster, and much slower where other work takes its turn."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def recipe() -> dict[str, ModuleType]:
    modules = {"data": load("data")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "data", modules["data"])  # the scripts import it by this name
        modules |= {"train": load("train"), "evaluate": load("evaluate")}
    return modules


@pytest.fixture(scope="module")
def tokenizer():
    return transformers.AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def conversations(recipe):
    data, rng = recipe["data"], Random(11)
    return [data.conversation(rng, data.setting(rng)) for _ in range(200)]


def test_folder_is_small():
    files = [path for path in FOLDER.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert sum(path.stat().st_size for path in files) <= 4_000_000


def test_model_is_a_qwen3_that_fits_its_tokenizer(tokenizer):
    config = transformers.AutoConfig.from_pretrained(FOLDER)
    assert config.architectures == ["Qwen3ForCausalLM"]
    assert len(tokenizer) <= config.vocab_size
    assert config.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")


def test_tokenizer_round_trip(tokenizer, conversations):
    for messages, tools in conversations:
        text = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids) == text
    strange = "Zürich 🌦️ 1234567\t\r\n<tool_call>日本</tool_call>"
    assert tokenizer.decode(tokenizer.encode(strange, add_special_tokens=False)) == strange


def test_every_name_and_number_is_one_token(tokenizer, recipe):
    data = recipe["data"]
    words = {word for city in data.CITIES for word in city.split() if word[0].isupper()} | set(data.CONDITIONS)
    numbers = {str(n) for n in range(2 * data.LARGEST_ADDEND + 1)}
    for text in words | numbers:
        before, after = tokenizer.encode(f'"{text}"'), tokenizer.encode(f" {text}.")
        assert len(before) == 3, text
        assert len(after) == (2 if text in data.CONDITIONS else 3), text


def test_template_says_what_qwen3_says(tokenizer, recipe):
    data = recipe["data"]
    call = {"function": {"name": "calculator", "arguments": {"a": 1, "b": 2}}}
    text = tokenizer.apply_chat_template(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "1+2"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": '{"result":3}'},
        ],
        tools=[data.CALCULATOR_TOOL],
        tokenize=False,
        add_generation_prompt=True,
    )
    assert text == (
        "<|im_start|>system\nBe brief.\n\n# Tools\n\n"
        "You may call one or more functions to assist with the user query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n"
        f"<tools>\n{json.dumps(data.CALCULATOR_TOOL)}\n</tools>\n\n"
        "For each function call, return a json object with function name and arguments within "
        "<tool_call></tool_call> XML tags:\n<tool_call>\n"
        '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n1+2<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "calculator", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
        '<|im_end|>\n<|im_start|>user\n<tool_response>\n{"result":3}\n</tool_response><|im_end|>\n'
        "<|im_start|>assistant\n"
    )


def test_template_takes_arguments_as_text_and_keeps_reasoning(tokenizer):
    call = {"function": {"name": "calculator", "arguments": '{"a": 1,  "b": 2}'}}
    answer = {"role": "assistant", "content": "Well.", "reasoning": "Hm.", "tool_calls": [call, call]}
    text = tokenizer.apply_chat_template([{"role": "user", "content": "1+2"}, answer], tokenize=False)
    written = '<tool_call>\n{"name": "calculator", "arguments": {"a": 1,  "b": 2}}\n</tool_call>'
    assert text.endswith(f"assistant\n<think>\nHm.\n</think>\n\nWell.\n{written}\n{written}<|im_end|>\n")


def test_template_continues_the_ids_of_every_turn(tokenizer, conversations):
    for messages, tools in conversations:
        whole = tokenizer.apply_chat_template(messages, tools=tools, return_dict=False)
        for turn, message in enumerate(messages):
            if message["role"] == "assistant":
                prompt = tokenizer.apply_chat_template(
                    messages[:turn], tools=tools, add_generation_prompt=True, return_dict=False
                )
                assert whole[: len(prompt)] == prompt


def test_generator_is_deterministic_and_of_two_minds(recipe):
    data = recipe["data"]

    def texts(seed):
        rng = Random(seed)
        return [json.dumps(data.conversation(rng, data.setting(rng))) for _ in range(300)]

    drawn = texts(5)
    assert drawn == texts(5)
    assert drawn != texts(6)
    asked = [text for text in drawn if '"name": "get_weather"' in text and "degrees" in text]
    assert {"tool_calls" in text for text in asked} == {True, False}


def test_training_counts_the_assistants_tokens_only(recipe, tokenizer):
    train, rng = recipe["train"], Random(3)
    data = recipe["data"]
    messages, tools = next(
        drawn for drawn in iter(lambda: data.conversation(rng, data.setting(rng)), None) if len(drawn.messages) == 4
    )
    ids = tokenizer.apply_chat_template(messages, tools=tools, return_dict=False)
    labels = train.Examples(tokenizer, rng).labels(ids)
    counted = tokenizer.decode([label for label in labels if label != train.IGNORED])
    turns = [turn.split("<|im_end|>")[0] for turn in tokenizer.decode(ids).split("<|im_start|>assistant\n")[1:]]
    assert turns
    assert counted == "".join(f"{turn}<|im_end|>" for turn in turns)


def test_a_shared_beginning_gives_the_same_loss(recipe, tokenizer):
    train = recipe["train"]
    torch.manual_seed(0)
    model, examples = train.make_model(tokenizer), train.Examples(tokenizer, Random(2))
    batches = iter(lambda: examples.conversations(recipe["data"].MIXED), None)
    batch = next(batch for batch in batches if batch.shared.numel())
    rows = len(batch.inputs)
    whole = train.Batch(
        batch.shared[:, :0],
        torch.cat([batch.shared.expand(rows, -1), batch.inputs], 1),
        torch.cat([torch.full((rows, batch.shared.shape[1]), train.IGNORED), batch.labels], 1),
    )
    with torch.no_grad():
        assert train.loss_of(model, batch).item() == pytest.approx(train.loss_of(model, whole).item(), rel=1e-4)


def test_model_uses_its_tools_but_not_always(recipe):
    evaluate = recipe["evaluate"]
    mixture = evaluate.with_tools(evaluate.Policy(str(FOLDER)), ["weather", "large sum"], 8, 4, Random(1))
    assert 0.1 < mixture["reward"] < 0.9
    assert mixture["mixed"] > 0
    assert mixture["called right"] > 0.3


def test_make_explains_itself():
    done = subprocess.run([RECIPE / "make"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "FOLDER" in done.stderr
