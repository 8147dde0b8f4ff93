"""A Hugging Face model with LoRA adapters: only the adapters are trained, sent and counted, on Flower too."""

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import BertConfig, BertForSequenceClassification

import fedgbo
from tests.flower.federations import federate, simulate, told

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
ADAPTERS = 2 * 2 * (32 * 4 + 4 * 32) + 32 * 2 + 2  # layers, query and value, A and B; the classifier


def bert():
    model = BertForSequenceClassification(BertConfig(vocab_size=50, max_position_embeddings=16, **SIZES))
    return get_peft_model(model, LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query", "value"]))


def task(**settings):
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 50, (160, 12))
    x, y = {"input_ids": ids, "attention_mask": np.ones_like(ids)}, (ids < 25).sum(axis=1) // 7
    clients = [({name: values[c::4] for name, values in x.items()}, y[c::4]) for c in range(4)]
    data = fedgbo.FederatedData.from_clients(train=clients[:3], test=clients[3])
    return fedgbo.Task("bert", data, bert, batch_size=8, **settings)


def test_only_adapters_travel():
    result = fedgbo.run(task(), fedgbo.FedGBO(fedgbo.Adam(lr=0.01, beta1=0.9)), rounds=3, local_steps=4)
    assert len(result.params) == ADAPTERS
    last = result.history[-1]
    assert last.upload_bytes == 3 * 3 * 4 * ADAPTERS  # rounds, clients, bytes
    assert last.download_bytes == 3 * last.upload_bytes  # the model and two statistics
    assert last.flops is not None
    trained, start = result.model().state_dict(), result.origin.blueprint.module.state_dict()
    moved = {name for name in start if not torch.equal(start[name], trained[name])}
    assert moved
    assert all("lora_" in name or "classifier" in name for name in moved)


def test_a_model_that_computes_its_own_loss():
    def with_labels(one):
        return {**one[0], "labels": one[1]}, one[1]

    plain = task()
    batches = [plain.data.train.batch(np.arange(40 * c, 40 * (c + 1))) for c in range(3)]
    test = plain.data.test.batch(np.arange(40))
    data = fedgbo.FederatedData.from_clients(train=[with_labels(one) for one in batches], test=with_labels(test))
    own = fedgbo.Task("bert", data, bert, batch_size=8, loss=lambda outputs, targets: outputs.loss, metric=None)
    algorithm = fedgbo.FedAvg(fedgbo.SGD(lr=0.1))
    ours, theirs = (fedgbo.run(one, algorithm, rounds=2, local_steps=3) for one in (own, plain))
    assert torch.allclose(ours.params, theirs.params, atol=1e-6)
    assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)


def test_a_federation_sends_the_same_bytes():
    assert told(federate(task, rounds=1)) == told(simulate(task, rounds=1))
