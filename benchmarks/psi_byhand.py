"""One party of an intersection without Coterie: SPU's library on CSV files, partners called directly.

python -m benchmarks.psi_byhand RANK PORT PROTOCOL INPUT KEY OUTPUT [tuned]     in the environment of the PSI engine

Tuned: as the engine uses the library. The input is then in order, and no key comes twice.
"""

from __future__ import annotations

import sys

from coterie.engines.psi import library

_BUCKET, _USUAL_BUCKET = 1 << 17, 1 << 20


def main(rank: int, port: int, protocol: str, source: str, key: str, target: str, how: str = "") -> None:
    tuned = how == "tuned"
    link, psi = library.load()
    desc = link.Desc()
    for party in (0, 1):
        desc.add_party(f"p{party}", f"127.0.0.1:{port + party}")
    desc.connect_retry_interval_ms = 100
    desc.connect_retry_times = 600
    desc.recv_timeout_ms = 600_000
    connection = link.create_brpc(desc, rank)
    psi.psi_execute(
        psi.PsiExecuteConfig(
            protocol_conf=psi.PsiProtocolConfig(
                protocol=getattr(psi.PsiProtocol, f"PROTOCOL_{protocol}"),
                broadcast_result=True,
                bucket_size=_BUCKET if tuned else _USUAL_BUCKET,
                ecdh_params=psi.EcdhParams(curve=psi.EllipticCurveType.CURVE_25519),
            ),
            input_params=psi.InputParams(path=source, selected_keys=[key], keys_unique=tuned),
            output_params=psi.OutputParams(path=target, disable_alignment=tuned),
        ),
        connection,
    )
    connection.stop_link()


if __name__ == "__main__":
    words = sys.argv[1:]
    main(int(words[0]), int(words[1]), *words[2:])
