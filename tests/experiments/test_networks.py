"""The experiment on networks: that they are the published ones, and what a result says of them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from experiments.networks.models import NETWORKS, build  # noqa: E402

# Parameters as published: torchvision's tables, the papers' or the checkpoints'.
PUBLISHED = {
    "resnet50": 25_557_032, "resnet18": 11_689_512, "mobilenet_v2": 3_504_872, "r3d_18": 33_371_472, "dcgan": 3_576_704,
    "bert_base": 109_482_240, "efficientnet_b0": 5_288_548, "vit_s": 22_050_664, "llama_prefill": 134_515_008,
    "llama_step": 134_515_008,
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_networks_have_as_many_parameters_as_published(name):
    network = NETWORKS[name]
    with torch.device("meta"):  # shapes alone
        module = network.make(**network.full)
    assert sum(p.numel() for p in module.parameters()) == PUBLISHED[name]


@pytest.mark.parametrize("name", NETWORKS)
def test_the_same_seed_makes_the_same_network(name):
    (module, inputs), (again, same) = (build(name, 2, reduced=True) for _ in range(2))
    with torch.no_grad():
        results, repeated = module(*inputs), again(*same)
    pairs = zip(*(r if isinstance(r, tuple) else (r,) for r in (results, repeated)), strict=True)
    assert all(torch.equal(a, b) and a.isfinite().all() for a, b in pairs)
    assert all(t.shape[0] == 2 for t in inputs if t.dim() > 1)
