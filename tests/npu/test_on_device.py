"""What needs the device in the process of the test: the modules of device/, each in a pytest of its own."""


def test_updates_on_the_npu(on_device):
    on_device("updates.py")


def test_paged_decode_follows_plain_pytorch_on_the_npu_and_on_the_cpu(on_device):
    on_device("paged_decode.py")


def test_refusals_and_options_of_the_npu(on_device):
    on_device("options.py")


def test_every_failing_call_of_cann_is_one_clear_error_and_the_next_capture_works(on_device):
    on_device("injection.py")
