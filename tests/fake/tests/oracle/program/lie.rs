//! The library's messages that a step forges.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lie {
    Put,
    Get,
    GetData,
    Atomic,
    Reply,
    Ping,
    Assist,
    Wireup,
    Service,
    Notify,
    PutNotify,
    Announce,
    Withdraw,
    Key,
    KeyIs,
    Headed,
    Deliver,
    Delivered,
    AnnounceHeaded,
    KeyNumbered,
    Named,
}

impl Lie {
    pub(crate) const ALL: [Lie; 21] = [
        Lie::Put,
        Lie::Get,
        Lie::GetData,
        Lie::Atomic,
        Lie::Reply,
        Lie::Ping,
        Lie::Assist,
        Lie::Wireup,
        Lie::Service,
        Lie::Notify,
        Lie::PutNotify,
        Lie::Announce,
        Lie::Withdraw,
        Lie::Key,
        Lie::KeyIs,
        Lie::Headed,
        Lie::Deliver,
        Lie::Delivered,
        Lie::AnnounceHeaded,
        Lie::KeyNumbered,
        Lie::Named,
    ];

    pub(crate) fn id(self) -> u32 {
        match self {
            Lie::Put => 0xf000,
            Lie::Get => 0xf001,
            Lie::GetData => 0xf002,
            Lie::Atomic => 0xf003,
            Lie::Reply => 0xf004,
            Lie::Ping => 0xf005,
            Lie::Assist => 0xf006,
            Lie::Wireup => 0xf007,
            Lie::Service => 0xf008,
            Lie::Notify => 0xf009,
            Lie::PutNotify => 0xf00a,
            Lie::Announce => 0xf00b,
            Lie::Withdraw => 0xf00c,
            Lie::Key => 0xf00d,
            Lie::KeyIs => 0xf00e,
            Lie::Headed => 0xf010,
            Lie::Deliver => 0xf011,
            Lie::Delivered => 0xf012,
            Lie::AnnounceHeaded => 0xf013,
            Lie::KeyNumbered => 0xf014,
            Lie::Named => 0xf020,
        }
    }
}
