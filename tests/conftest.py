import pytest

import functad as fd


@pytest.fixture(params=["xla", "numpy"])
def device(request):
    return fd.Device.cpu() if request.param == "xla" else fd.Device.numpy()
