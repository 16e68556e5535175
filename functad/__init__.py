from functad.errors import *
from functad.dtypes import enable_x64
from functad.device import Device, GradientCheckpointing, set_default_device
from functad.tensor import Tensor
import functad.backends.xla, functad.backends.numpy, functad.backends.autodiff
from functad.creation import *
from functad.transforms.grad import grad, value_and_grad
