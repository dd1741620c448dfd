from tests.power import power_cut_volume

__all__ = ["power_cut_volume"]
