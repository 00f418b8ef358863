"""Parameter counts equal the published ones, without drawing a single parameter.

The numbers are the hub's own counts of the released safetensors. Gemma 3's and Llama 4's, which hold vision towers, are
those counts less the tower's and projector's.
"""

import kanawa as kn
import pytest
from kanawa.arrays.tree import flatten_paths
from kanawa.cli.about.summary import summary
from kanawa.plugins import component, host

_GEMMA3_4B_VISION = 416_866_032 + 2_950_272
_LLAMA4_VISION = 871_932_416

PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama-7b": 6_738_415_616,
    "llama-13b": 13_015_864_320,
    "llama-30b": 32_528_943_616,
    "llama-65b": 65_285_660_672,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3.1-8b": 8_030_261_248,
    "llama3.1-70b": 70_553_706_496,
    "llama3.1-405b": 405_853_388_800,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "llama4-scout": 108_641_793_536 - _LLAMA4_VISION,
    "llama4-maverick": 401_583_781_376 - _LLAMA4_VISION,
    "qwen2-0.5b": 494_032_768,
    "qwen2-1.5b": 1_543_714_304,
    "qwen2-7b": 7_615_616_512,
    "qwen2-72b": 72_706_203_648,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "gemma2-2b": 2_614_341_888,
    "gemma2-9b": 9_241_705_984,
    "gemma2-27b": 27_227_128_320,
    "gemma3-1b": 999_885_952,
    "gemma3-4b": 4_300_079_472 - _GEMMA3_4B_VISION,
    "gemma3-4b-vision": 4_300_079_472,
    "gemma3-12b-vision": 12_187_325_040,
    "gemma3-27b-vision": 27_432_406_640,
    "qwen3-vl-2b": 2_127_532_032,
    "qwen3-vl-4b": 4_437_815_808,
    "qwen3-vl-8b": 8_767_123_696,
    "qwen3-vl-30b-a3b": 31_070_754_032,
    "mistral-7b": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_630_071_296,
    # 671,026,404,352 and the biases that balance 58 layers of 256 experts, which are state here.
    "deepseek-v3": 671_026_419_200 - 58 * 256,
    # The hub's count holds the balancing biases of 60 layers of 384 experts.
    "kimi-k2": 1_026_408_232_448 - 60 * 384,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "olmo3-7b": 7_298_011_136,
    "olmo3-32b": 32_233_522_176,
    "smollm3-3b": 3_075_098_624,
    "granite-3.3-2b": 2_533_539_840,
    "granite-3.3-8b": 8_170_864_640,
    "seed-oss-36b": 36_151_104_512,
    "phi-3-mini": 3_821_079_552,
    "phi-4": 14_659_507_200,
    "olmo2-1b": 1_484_916_736,
    "olmo2-7b": 7_298_617_344,
    "olmo2-13b": 13_716_198_400,
    "olmo2-32b": 32_234_279_936,
    "sd-vae": 83_653_863,
    "sd3-vae": 83_819_683,
    "resnet-18": 11_689_512,
    "resnet-34": 21_797_672,
    "resnet-50": 25_557_032,
    "resnet-101": 44_549_160,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_count_is_the_published_one(name):
    specs = flatten_paths(kn.param_specs(component("models", name)().build()))
    assert sum(spec.size for spec in specs.values()) == PUBLISHED[name]


@pytest.mark.parametrize(
    ("name", "layers", "width", "heads", "kv_heads", "head_dim", "hidden"),
    [
        ("gemma3-4b", 34, 2560, 8, 4, 256, 10_240),
        ("gemma3-12b", 48, 3840, 16, 8, 256, 15_360),
        ("gemma3-27b", 62, 5376, 32, 16, 128, 21_504),
    ],
)
def test_text_models_of_gemma3_count_what_their_configs_say(name, layers, width, heads, kv_heads, head_dim, hidden):
    attention = width * head_dim * (2 * heads + 2 * kv_heads) + 2 * head_dim
    layer = attention + 3 * width * hidden + 4 * width
    specs = flatten_paths(kn.param_specs(component("models", name)().build()))
    assert sum(spec.size for spec in specs.values()) == 262_208 * width + layers * layer + width


@pytest.mark.parametrize("name", ["gpt2-xl", "llama2-7b", "llama-65b", "qwen3-30b-a3b", "mixtral-8x7b"])
def test_the_list_of_models_says_the_count(name):
    state = next(state for state in host().components("models") if state.name == name)
    assert f"{PUBLISHED[name]:,} parameters" in summary(state)
