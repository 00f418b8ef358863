"""ResNet (He et al. 2015, arXiv:1512.03385, table 1), in the form that strides in the 3 x 3 convolution."""

from functools import partial
from typing import Any

import kanawa as kn
from kanawa.contracts import ForeignConfigError, ForeignFamily

from kanawa_layers.basic.conv import square_conv
from kanawa_layers.basic.pooling import MeanPooling
from kanawa_layers.models.resnet import ConvNorm, ConvStage, ResidualConvs, ResNet
from kanawa_layers.models.vision import ImageClassifier
from kanawa_layers.recipes.hf_config import Foreign, activation, activation_name, expect
from kanawa_layers.recipes.vit import class_names_of, class_names_written

_MODEL = kn.foreign.Names(
    children={"encoder": "resnet", "head": "classifier.1"},
    # A counter of batches that nothing reads.
    ignored=("*.num_batches_tracked",),
)
#: A bottleneck is this much narrower than what comes out of it.
_NARROWER = 4


def resnet(
    *,
    depths: tuple[int, ...],
    widths: tuple[int, ...],
    bottleneck: bool,
    stem_dim: int = 64,
    num_channels: int = 3,
    image_size: int = 224,
    num_classes: int = 1000,
    strided_first_stage: bool = False,
    small_stem: bool = False,
) -> ImageClassifier.Config:
    """Returns a ResNet of any size; `widths` are those that come out of each stage.

    `small_stem` is a 3 x 3 convolution without stride or pooling, for pictures of 32 pixels (section 4.2).
    """
    dim, stages = stem_dim, []
    for number, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        layers = []
        for place in range(depth):
            stride = 2 if place == 0 and (number > 0 or strided_first_stage) else 1
            layers.append(_layer(dim, width, stride, bottleneck=bottleneck))
            dim = width
        stages.append(ConvStage.Config(layers=tuple(layers)))
    encoder = ResNet.Config(
        image_size=image_size,
        num_channels=num_channels,
        stem=ConvNorm.Config(output_dim=stem_dim, convolution=square_conv(*((3, 1) if small_stem else (7, 2)))),
        pools=not small_stem,
        stages=tuple(stages),
    )
    return ImageClassifier.Config(
        input_dim=dim, num_classes=num_classes, encoder=encoder, pooling=MeanPooling.Config(), foreign=_MODEL
    )


def _layer(input_dim: int, width: int, stride: int, *, bottleneck: bool) -> ResidualConvs.Config:
    narrow = width // _NARROWER
    shapes = [(1, 1, narrow), (3, stride, narrow), (1, 1, width)] if bottleneck else [(3, stride, width), (3, 1, width)]
    layers = [ConvNorm.Config(output_dim=dim, convolution=square_conv(size, step)) for size, step, dim in shapes]
    layers[-1].set(activation=None)
    shortcut = None
    if input_dim != width or stride != 1:
        shortcut = ConvNorm.Config(output_dim=width, convolution=square_conv(1, stride), activation=None)
    return ResidualConvs.Config(layers=tuple(layers), shortcut=shortcut)


def from_hf(config: Foreign) -> ImageClassifier.Config:
    """Returns the model of a `resnet` config.json."""
    expect(config, downsample_in_bottleneck=False)
    names, count = class_names_of(config)
    cfg = resnet(
        depths=tuple(config["depths"]),
        widths=tuple(config["hidden_sizes"]),
        bottleneck=config.get("layer_type", "bottleneck") == "bottleneck",
        stem_dim=config["embedding_size"],
        num_channels=config.get("num_channels", 3),
        num_classes=count,
        strided_first_stage=config.get("downsample_in_first_stage", False),
    )
    cfg.set(class_names=names)
    function = activation(config.get("hidden_act", "relu"))
    for _, node in cfg.encoder.walk():
        if isinstance(node, ConvNorm.Config | ResidualConvs.Config) and node.activation is not None:
            node.set(activation=function)
    return cfg


def to_hf(cfg: Any) -> dict[str, Any]:
    """Returns the inverse of `from_hf`; raises ForeignConfigError for a stem of small pictures."""
    encoder = cfg.encoder
    if not encoder.pools:
        message = "a resnet in Hugging Face's form has a stem of 7 x 7 pixels that pools"
        raise ForeignConfigError(message)
    first = encoder.stages[0].layers[0].layers
    return {
        "architectures": ["ResNetForImageClassification"],
        "num_channels": encoder.num_channels,
        "embedding_size": encoder.stem.output_dim,
        "hidden_sizes": [stage.layers[-1].layers[-1].output_dim for stage in encoder.stages],
        "depths": [len(stage.layers) for stage in encoder.stages],
        "layer_type": "bottleneck" if len(first) == 3 else "basic",
        "downsample_in_first_stage": any(layer.convolution.strides[0] > 1 for layer in first),
        "downsample_in_bottleneck": False,
        "hidden_act": activation_name(encoder.stem.activation, "relu"),
        **class_names_written(cfg),
    }


FAMILY = ForeignFamily(from_hf, to_hf)

_WIDTHS = (64, 128, 256, 512)
_WIDE = (256, 512, 1024, 2048)
#: 11,689,512 parameters.
resnet_18 = partial(resnet, depths=(2, 2, 2, 2), widths=_WIDTHS, bottleneck=False)
#: 21,797,672 parameters.
resnet_34 = partial(resnet, depths=(3, 4, 6, 3), widths=_WIDTHS, bottleneck=False)
#: 25,557,032 parameters.
resnet_50 = partial(resnet, depths=(3, 4, 6, 3), widths=_WIDE, bottleneck=True)
#: 44,549,160 parameters.
resnet_101 = partial(resnet, depths=(3, 4, 23, 3), widths=_WIDE, bottleneck=True)
#: For images of 32 pixels, to try things out.
resnet_tiny = partial(
    resnet, depths=(1, 1, 1), widths=(16, 32, 64), bottleneck=False, stem_dim=16, small_stem=True, image_size=32,
    num_classes=10,
)  # fmt: skip
