"""A setting may be given by every name that a description prints."""

from __future__ import annotations

import msgspec
import pytest

from quiver.errors import InvalidSetting
from quiver.model.setting import settings_of
from quiver.model.setting_names import own_names
from quiver.model.subscription import SubscriptionSettings
from quiver.model.topic import TopicSettings

BOTH = (TopicSettings, SubscriptionSettings)


@pytest.mark.parametrize("model", BOTH)
def test_a_whole_name_leads_to_its_group(model: type[msgspec.Struct]) -> None:
    for one in settings_of(model):
        group, _, field = one.name.rpartition(".")
        assert own_names((model,), {one.name: 1}) == ({group: {field: 1}} if group else {field: 1})


def test_what_json_prints_is_what_it_was() -> None:
    for settings in (TopicSettings(), SubscriptionSettings(topics=["a"])):
        printed = msgspec.to_builtins(settings)
        assert own_names(BOTH, printed) == printed


def test_a_time_may_have_its_unit_or_not() -> None:
    assert own_names(BOTH, {"segment_age": "1h", "visibility_s": 5}) == {
        "segment_age_s": "1h",
        "visibility": 5,
    }
    assert own_names(BOTH, {"retention": {"age_s": 5}}) == {"retention": {"age": 5}}
    assert own_names(BOTH, {"retention.age_s": 5, "retention": {"bytes": 1}}) == {
        "retention": {"age": 5, "bytes": 1}
    }


def test_a_name_that_is_not_known_stays_as_it_is() -> None:
    given = {"visibilty": 1, "visibility.x": 2, "a.b": 3, "start": "latest"}
    assert own_names(BOTH, given) == given


def test_two_names_of_one_setting_are_a_mistake() -> None:
    with pytest.raises(InvalidSetting, match="visibility is given twice"):
        own_names(BOTH, {"visibility": 1, "visibility_s": 2})
