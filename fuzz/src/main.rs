#![no_main]
//! All fuzz targets, in one program, which is compiled and linked once: `FUZZ_TARGET` names the one
//! to run. What its inputs mean is said in the module that it calls. Each has a folder of kept
//! inputs in `corpus`; the scripts take their list of targets from there.

use std::sync::OnceLock;

/// Feeds one input to the code that is attacked.
type Target = fn(&[u8]);

fn target() -> Target {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    match name.as_str() {
        "api" => vmlan_api::fuzz::api,
        "capture" => vmlan_tools::fuzz::capture,
        "chip_state" => |data| _ = vmlan_nic::chip::fuzz::state::chip_state(data),
        "claims" => |data| _ = vmlan_switch::fuzz::claims(data),
        "config" => vmlan_config::fuzz::config,
        "e1000" => |data| _ = vmlan_nic::e1000::fuzz::e1000(data),
        "e1000e" => |data| _ = vmlan_nic::e1000e::fuzz::e1000e(data),
        "frame" => vmlan_frame::fuzz::frame,
        "gateway_dhcp" => vmlan_gateway::fuzz::dhcp,
        "gateway_dns" => vmlan_gateway::fuzz::dns,
        "gateway_frames" => vmlan_gateway::fuzz::frames,
        "r8169" => |data| _ = vmlan_nic::r8169::fuzz::r8169(data),
        "rtl8139" => |data| _ = vmlan_nic::rtl8139::fuzz::rtl8139(data),
        "stream" => vmlan_uplink::stream::fuzz::stream,
        "switch" => vmlan_engine::fuzz::switch,
        "vfio_user" => vmlan_attach::fuzz::vfio_user,
        "vhost_user" => vmlan_attach::fuzz::vhost_user,
        "virtqueue" => vmlan_nic::fuzz::virtqueue,
        "vmxnet3" => |data| _ = vmlan_nic::vmxnet3::fuzz::vmxnet3(data),
        _ => panic!("FUZZ_TARGET=\"{name}\" is not a target; fuzz/corpus has a folder for each"),
    }
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    static TARGET: OnceLock<Target> = OnceLock::new();
    TARGET.get_or_init(target)(data);
});
