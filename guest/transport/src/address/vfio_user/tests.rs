use super::*;

#[test]
fn an_address_says_everything() {
    let text = "\
        vfio-user:/run/a.sock,model=e1000,writes=posted,doorbell=mapped,irq=msi,\
        unmask=message,reset=memory,mmap_timeout=7,interrupts=idle,size=4096,\
        buffer=4096,segment=100,mtu=9000,budget=7,refill=0,itr=488,tidv=1,tadv=2,\
        rdtr=3,radv=65535,batch=on,flush=off,promisc,secrc=on,csum=on,tso=on,\
        completion=lazy,receive=poll,combine_frames=3,combine_us=4,causes=unread";
    let address: VfioUser = text.parse().unwrap();
    assert_eq!(address.path, PathBuf::from("/run/a.sock"));
    assert!(address.posted);
    assert_eq!((address.unmask, address.mmap_timeout), (Unmask::Message, 7));
    assert_eq!(address.doorbell, Doorbell::Mapped);
    let expected = Options {
        model: crate::Model::E1000,
        size: 4096,
        buffer: 4096,
        segment: 100,
        mtu: 9000,
        irq: Irq::Msi,
        reads_causes: false,
        reset_by_io: false,
        interrupts: Interrupts::Idle,
        completion: Completion::Lazy,
        receive: Reception::Poll,
        combine: false,
        combine_frames: 3,
        combine_us: 4,
        csb: false,
        budget: 7,
        refill: 0,
        itr: 488,
        tidv: 1,
        tadv: 2,
        rdtr: 3,
        radv: 65_535,
        mitigate: 0,
        mitigate_unit: 0,
        batch: true,
        flush: false,
        promisc: true,
        strip_crc: true,
        checksum: true,
        segmentation: true,
        lro: false,
        fence: true,
        room: Options::default().room,
    };
    assert_eq!(address.driver, expected);
}

#[test]
fn the_chip_decides_about_defaults() {
    for (keys, model, size, buffer) in [
        ("", Model::E1000, 256, 2048),
        (",model=r8169", Model::R8169, 256, 2048),
        (",size=1024,model=r8169,mitigate=0x5f51,mitigate_unit=3", Model::R8169, 1024, 2048),
        (",model=rtl8139", Model::Rtl8139Plus, 64, 2048),
        (",model=rtl8139,plus,size=8", Model::Rtl8139Plus, 8, 2048),
        (",plus=off,model=rtl8139", Model::Rtl8139Classic, 64, 32_768),
        (",model=e1000e,doorbell=mapped,itr=500", Model::E1000e, 256, 2048),
        (",model=vmxnet3", Model::Vmxnet3, 512, 2048),
        (",size=4096,model=vmxnet3,irq=intx,fence=off", Model::Vmxnet3, 4096, 2048),
    ] {
        let address: VfioUser = format!("vfio-user:/a{keys}").parse().unwrap();
        let driver = &address.driver;
        assert_eq!((driver.model, driver.size, driver.buffer), (model, size, buffer), "{keys}");
    }
    let address: VfioUser = "vfio-user:/a,model=r8169,mitigate=0x5f51".parse().unwrap();
    assert_eq!(address.driver.mitigate, 0x5f51);
    let address: VfioUser = "vfio-user:/a,model=vmxnet3,fence=off".parse().unwrap();
    let driver = &address.driver;
    assert_eq!((driver.irq, driver.reads_causes, driver.fence), (Irq::Msix, false, false));
}

#[test]
fn the_list_of_keys_is_whole() {
    for key in KEYS.split(", ") {
        let refused = format!("vfio-user:/a,{key}=?").parse::<VfioUser>().unwrap_err();
        assert!(matches!(refused, AddressError::Value { .. }), "{key}: {refused}");
    }
    let refused = "vfio-user:/a,cbs".parse::<VfioUser>().unwrap_err().to_string();
    assert!(refused.contains(KEYS), "{refused}");
}

#[test]
fn what_goes_together_and_what_does_not() {
    for (keys, expected) in [
        ("combine,itr=976", None),
        ("combine,batch,receive=poll", None),
        ("combine,receive=adaptive", None),
        ("combine,doorbell=trapped,irq=msi", None),
        ("csb", None),
        ("csb,receive=poll,itr=976", None),
        ("csb,interrupts=idle,batch", None),
        ("completion=lazy,receive=adaptive,doorbell=mapped", None),
        ("receive=poll,interrupts=idle", None),
        ("combine,csb", Some(Conflict::CombineCsb)),
        ("csb=on,combine=on,completion=lazy", Some(Conflict::CombineCsb)),
        ("combine,completion=lazy", Some(Conflict::CombineLazy)),
        ("combine,interrupts=idle", Some(Conflict::CombineIdle)),
        ("combine,doorbell=mapped", Some(Conflict::CombineMapped)),
        ("csb,doorbell=mapped", Some(Conflict::CsbMapped)),
        ("csb,completion=lazy", Some(Conflict::CsbLazy)),
        ("csb,receive=adaptive", Some(Conflict::CsbAdaptive)),
        ("interrupts=idle,receive=adaptive", Some(Conflict::IdleAdaptive)),
    ] {
        let parsed = format!("vfio-user:/a,{keys}").parse::<VfioUser>();
        let found = match parsed {
            Ok(_) => None,
            Err(AddressError::Conflict(conflict)) => Some(conflict),
            Err(other) => panic!("{keys}: {other}"),
        };
        assert_eq!(found, expected, "{keys}");
    }
    let text = AddressError::from(Conflict::CsbMapped).to_string();
    assert!(text.starts_with("csb=on and doorbell=mapped: a kick must be heard"), "{text}");
    let nothing = Options { combine: true, combine_frames: 0, ..Options::default() };
    assert_eq!(nothing.check(), Err(Conflict::CombineNothing));
    for (keys, maps) in [("size=8", true), ("combine", false), ("csb", false)] {
        let address: VfioUser = format!("vfio-user:/a,{keys}").parse().unwrap();
        assert_eq!(address.may_map(), maps, "doorbell=auto with {keys}");
    }
}

#[test]
fn a_wrong_address_says_what_to_do() {
    for (text, word) in [
        ("vhost-user:/a", "vfio-user:"),
        ("vfio-user:", "no path"),
        ("vfio-user:/a,colour=red", "colour"),
        ("vfio-user:/a,model=ne2000", "e1000, e1000e, r8169, rtl8139 or vmxnet3"),
        ("vfio-user:/a,plus=off", "plus: e1000 has none"),
        ("vfio-user:/a,plus=no,model=rtl8139", "on or off"),
        ("vfio-user:/a,itr=1,model=r8169", "itr: r8169 has none"),
        ("vfio-user:/a,mitigate=1", "mitigate: e1000 has none"),
        ("vfio-user:/a,model=r8169,mitigate=0x10000", "0x0 to 0xffff"),
        ("vfio-user:/a,model=r8169,mitigate_unit=4", "0 to 3"),
        ("vfio-user:/a,model=r8169,size=2048", "size=1024 or less"),
        ("vfio-user:/a,model=r8169,doorbell=mapped", "doorbell=mapped: r8169 has none"),
        ("vfio-user:/a,model=rtl8139,size=128", "size=64 or less"),
        ("vfio-user:/a,model=rtl8139,buffer=8192", "256 to 4096 bytes"),
        ("vfio-user:/a,model=rtl8139,irq=msi", "irq=msi: rtl8139 C+ has none"),
        ("vfio-user:/a,model=rtl8139,plus=off,csb", "csb=on: rtl8139 has none"),
        ("vfio-user:/a,model=rtl8139,plus=off,buffer=4096", "8192 to 32768 bytes"),
        ("vfio-user:/a,irq=msix", "irq=msix: e1000 has none"),
        ("vfio-user:/a,fence=off", "fence: e1000 has none"),
        ("vfio-user:/a,model=vmxnet3,lro", "buffers of 4096 bytes or more"),
        ("vfio-user:/a,model=e1000e,csb", "csb=on: e1000e has none"),
        ("vfio-user:/a,model=e1000e,causes=read", "causes=read: e1000e has none"),
        ("vfio-user:/a,model=vmxnet3,csb", "csb=on: vmxnet3 has none"),
        ("vfio-user:/a,model=vmxnet3,completion=lazy", "completion=lazy: vmxnet3 has none"),
        ("vfio-user:/a,model=vmxnet3,irq=msi,causes=read", "causes=read: vmxnet3 has none"),
        ("vfio-user:/a,model=vmxnet3,itr=1", "itr: vmxnet3 has none"),
        ("vfio-user:/a,model=vmxnet3,size=48", "32 descriptors, or a multiple"),
        ("vfio-user:/a,model=vmxnet3,mtu=9001", "9000 at most"),
        ("vfio-user:/a,model=vmxnet3,segment=127", "use larger segments"),
        ("vfio-user:/a,model=vmxnet3,buffer=16384", "256 to 8192 bytes"),
        ("vfio-user:/a,size=100", "multiple of 8"),
        ("vfio-user:/a,size=4104", "4096"),
        ("vfio-user:/a,buffer=2000", "2048"),
        ("vfio-user:/a,buffer=32768", "256 to 16384 bytes"),
        ("vfio-user:/a,itr=65536", "65535"),
        ("vfio-user:/a,writes=later", "posted"),
        ("vfio-user:/a,batch=maybe", "on or off"),
        ("vfio-user:/a,receive=never", "adaptive"),
        ("vfio-user:/a,completion=never", "lazy"),
        ("vfio-user:/a,combine_frames=0", "1 to 4096"),
        ("vfio-user:/a,combine_us=70000", "65535"),
    ] {
        let error = text.parse::<VfioUser>().unwrap_err().to_string();
        assert!(error.contains(word), "{text}: {error}");
    }
}
