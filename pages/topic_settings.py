"""``docs/reference/topic-settings.md``: the settings of topics, queues and subscriptions."""

from __future__ import annotations

from collections.abc import Iterable

from quiver.cli.support import subscription_options, topic_options
from quiver.cli.support.setting_flags import SettingFlag
from quiver.model.setting import Setting, Unit, settings_of
from quiver.model.subscription import SubscriptionSettings
from quiver.model.topic import TopicSettings

_PAGE = """\
# Settings of topics, queues and subscriptions

Generated from the definitions of the settings (`make pages`). A queue has both tables: it is a topic and a
subscription of the same name. [A node's settings](settings.md) have their own page.

The names are those of Python and HTTP. A dot marks a setting in a group: `retention.age` is
`retention=Retention(age=…)` in Python and `{"retention": {"age": …}}` in JSON. `none` is `None` in Python,
`null` in JSON and the word `none` on the command line.

Times are seconds (`_ms`: milliseconds), or text such as `"30s"` and `"1h30m"`. Sizes are bytes, or text such
as `"10GB"` and `"256MiB"`. Over HTTP, settings with a unit in their name are whole numbers. A value outside
its bounds is refused with the code `invalid_setting` or, over HTTP, `invalid_request`.

How to use them: [queues](../howto/queues.md), [order](../howto/order.md), [retry](../howto/retry.md),
[retention](../howto/retain.md), [exactly once](../howto/exactly-once.md), [clusters](../howto/cluster.md).
"""
_HEAD = "| setting | default | bounds | flag | meaning |\n| --- | --- | --- | --- | --- |\n"


def reference_page() -> str:
    return "\n".join(
        [
            _PAGE,
            "## Topics\n\n" + _table(settings_of(TopicSettings), topic_options.FLAGS),
            "## Subscriptions\n\n"
            + _table(settings_of(SubscriptionSettings), subscription_options.FLAGS),
        ]
    )


def _table(settings: Iterable[Setting], flags: Iterable[SettingFlag]) -> str:
    named = {flag.setting.name: f"`{flag.flag}`" for flag in flags} | {"topics": "`--topic`"}
    return _HEAD + "".join(
        f"| `{one.name}` | {_default(one)} | {bounds(one)} | {named[one.name]} | {_meaning(one)} |\n"
        for one in settings
    )


def _default(one: Setting) -> str:
    return "required" if one.is_required else f"`{one.shown(one.default)}`"


def bounds(one: Setting) -> str:
    """What the setting may be, in words."""
    if one.choices is not None:
        named = [f"`{choice}`" for choice in one.choices]
        return ", ".join(named) + (", or `none`" if one.is_optional else "")
    if bool in one.kinds:
        return "`true` or `false`"
    words = one.bounds or ("text" if one.unit is Unit.NONE else "")
    return f"{words}, or `none`" if one.is_optional else words


def _meaning(one: Setting) -> str:
    words = f"{one.description} `none`: {one.without}." if one.without else one.description
    return words.replace("|", "\\|").replace("*", "\\*")
