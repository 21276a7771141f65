# dh --with tieline
use strict;
use warnings;
use Debian::Debhelper::Dh_Lib;

insert_before('dh_gencontrol', 'dh_tieline');
# A provider is opened by its path and never linked.
add_command_options('dh_makeshlibs', '-Xtieline-1/providers');

1;
