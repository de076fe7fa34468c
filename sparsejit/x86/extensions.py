"""Instructions that PeachPy lacks, with their encodings."""

from typing import NamedTuple


class Extension(NamedTuple):
    """An EVEX instruction that PeachPy lacks: `name destination, [source1,] source2/memory`."""

    prefix: int  # 0: none, 1: 66, 2: F3, 3: F2
    opcode_map: int  # 2: 0F38
    wide: int  # EVEX.W
    opcode: int
    sources: int
    needs: str  # its instruction set, named as in /proc/cpuinfo
    source: str  # section of Intel's Software Developer's Manual, volume 2


EXTENSIONS: dict[str, Extension] = {
    "vpdpbusd": Extension(1, 2, 0, 0x50, 2, "avx512_vnni", "SDM 2C VPDPBUSD"),
    "vpdpwssd": Extension(1, 2, 0, 0x52, 2, "avx512_vnni", "SDM 2C VPDPWSSD"),
    "vdpbf16ps": Extension(2, 2, 0, 0x52, 2, "avx512_bf16", "SDM 2C VDPBF16PS"),
    "vcvtneps2bf16": Extension(2, 2, 0, 0x72, 1, "avx512_bf16", "SDM 2C VCVTNEPS2BF16"),
    "vpshrdvd": Extension(1, 2, 0, 0x73, 2, "avx512_vbmi2", "SDM 2C VPSHRDV"),
    "vpshldvd": Extension(1, 2, 0, 0x71, 2, "avx512_vbmi2", "SDM 2C VPSHLDV"),
    "vpexpandb": Extension(1, 2, 0, 0x62, 1, "avx512_vbmi2", "SDM 2C VPEXPAND"),
}


class TileExtension(NamedTuple):
    """An instruction of AMX, which PeachPy lacks; all lie in opcode map 0F38, VEX.128, W0.

    `form` is the encoding of its operands: "memory" (ModRM.reg is 0), "load" and "store" (a tile
    in ModRM.reg; memory with an index, the stride of rows), "tile" (in ModRM.reg), "product"
    (ModRM.reg, ModRM.rm, VEX.vvvv) or "none".
    """

    prefix: int  # as of Extension
    opcode: int
    form: str
    needs: str
    source: str


TILE_EXTENSIONS: dict[str, TileExtension] = {
    "ldtilecfg": TileExtension(0, 0x49, "memory", "amx_tile", "SDM 2A LDTILECFG"),
    "sttilecfg": TileExtension(1, 0x49, "memory", "amx_tile", "SDM 2B STTILECFG"),
    "tilerelease": TileExtension(0, 0x49, "none", "amx_tile", "SDM 2B TILERELEASE"),
    "tilezero": TileExtension(3, 0x49, "tile", "amx_tile", "SDM 2B TILEZERO"),
    "tileloadd": TileExtension(3, 0x4B, "load", "amx_tile", "SDM 2B TILELOADD"),
    "tilestored": TileExtension(2, 0x4B, "store", "amx_tile", "SDM 2B TILESTORED"),
    "tdpbssd": TileExtension(3, 0x5E, "product", "amx_int8", "SDM 2B TDPBSSD"),
    "tdpbsud": TileExtension(2, 0x5E, "product", "amx_int8", "SDM 2B TDPBSUD"),
    "tdpbusd": TileExtension(1, 0x5E, "product", "amx_int8", "SDM 2B TDPBUSD"),
}
