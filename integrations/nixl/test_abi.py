"""Tests of the declarations in src/nixl.h against abi.md, NIXL's headers and NIXL's plug-ins, and of the refusal of other versions."""

import glob
import os
import re
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
FLAGS = ["-std=c++20", "-fno-access-control", "-Wno-invalid-offsetof"]
# An object of a class whose constructor is here makes the compiler emit the vtable of its base.
SIBLING = """
#include "nixl.h"
struct __attribute__((visibility("default"))) Other : nixlBackendEngine { Other(); };
Other::Other() : nixlBackendEngine(nullptr) {}
"""


def compiled(folder, source, *flags):
    """Compiles a C++ source file and returns the result's path."""
    result = os.path.join(folder, "result")
    subprocess.run(["c++", *FLAGS, *flags, source, "-o", result], check=True)
    return result


def table():
    """Reads the slots, sizes and fields of abi.md, as tests/layout.cpp prints them."""
    facts = set()
    with open(os.path.join(HERE, "abi.md")) as page:
        for row in page:
            cells = [cell.strip() for cell in row.strip().strip("|").split(" | ")]
            if slot := re.match(r"(\d+)$", cells[0]):
                facts.add(f"slot {slot[1]} {re.match(r'`(.*?)`', cells[1])[1]}")
            elif len(cells) == 3 and cells[1].isdigit():
                record = cells[0].strip("`")
                facts.add(f"size {record} {cells[1]}")
                facts.update(f"field {record}.{name} {at}" for name, at in re.findall(r"`(\w+)`[^`(]*\((\d+)\)", cells[2]))
    return facts


def printed(*flags):
    with tempfile.TemporaryDirectory() as folder:
        program = compiled(folder, os.path.join(HERE, "tests/layout.cpp"), *flags)
        return set(subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines())


def slots_of(plugin, vtable):
    """Reads the names of the slots of a vtable that a shared object exports: word to symbol."""
    symbols = subprocess.run(["readelf", "-W", "--dyn-syms", plugin], check=True, capture_output=True, text=True).stdout
    at, size = next((int(w[1], 16), int(w[2], 0)) for w in map(str.split, symbols.splitlines()) if len(w) > 7 and w[7] == vtable)
    slots = {}
    relocations = subprocess.run(["readelf", "-rW", plugin], check=True, capture_output=True, text=True).stdout
    for words in map(str.split, relocations.splitlines()):
        if len(words) > 4 and re.match(r"[0-9a-f]{12,}$", words[0]) and at <= int(words[0], 16) < at + size:
            slots[(int(words[0], 16) - at) // 8] = words[4].split("@")[0]
    return size, slots


def own_plugins():
    """Returns the folder of the plug-ins that the installed wheel has."""
    for place in sys.path:
        for pattern in (".nixl*.mesonpy.libs/plugins", "nixl*.libs/nixl"):
            for folder in glob.glob(os.path.join(place, pattern)):
                return folder
    raise unittest.SkipTest("the wheel has no folder of plug-ins")


class Declarations(unittest.TestCase):
    def test_the_declarations_are_those_of_the_table(self):
        self.assertEqual(printed() - table(), set())
        self.assertEqual(table() - printed(), set())

    def test_the_real_headers_have_the_same_layout(self):
        include = os.environ.get("NIXL_INCLUDE")
        if not include:
            self.skipTest("NIXL_INCLUDE does not name src/api/cpp of NIXL's sources")
        with tempfile.TemporaryDirectory() as folder:
            # The real header of NIXL's log needs Abseil, and declares nothing that crosses the interface.
            os.makedirs(os.path.join(folder, "common"))
            with open(os.path.join(folder, "common/nixl_log.h"), "w") as log:
                log.write("#pragma once\n#include <iostream>\n#define NIXL_ERROR std::cerr\n#define NIXL_ASSERT(x) ((void)0)\n")
            source = os.path.dirname(os.path.dirname(os.path.abspath(include)))
            others = (folder, include, source + "/utils", source + "/core", source + "/core/telemetry", include + "/telemetry")
            self.assertEqual(printed("-DREAL", *("-I" + place for place in others)), printed())

    def test_a_plugin_of_the_wheel_has_the_slots_in_this_order(self):
        size, slots = slots_of(os.path.join(own_plugins(), "libplugin_UCX.so"), "_ZTV13nixlUcxEngine")
        wanted = [fact.split() for fact in table() if fact.startswith("slot")]
        for _, word, name in wanted:
            self.assertRegex(slots[int(word)], rf"Engine{len(name)}{name}E", word)
        self.assertEqual(len(wanted), 25)
        self.assertGreaterEqual(size, 232)


class Refusals(unittest.TestCase):
    """nixl_plugin_init beside plug-ins of several interfaces, without NIXL."""

    def outcome(self, *changes, sibling=True):
        """Calls nixl_plugin_init beside a plug-in made from changed declarations: whether it accepts, and its words."""
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(HERE, "src/nixl.h")) as header:
                text = header.read()
            for old, new in changes:
                self.assertIn(old, text)
                text = text.replace(old, new)
            text = text.replace("static_assert", "//")
            for name, content in (("nixl.h", text), ("sibling.cpp", SIBLING)):
                with open(os.path.join(folder, name), "w") as file:
                    file.write(content)
            if sibling:
                made = compiled(folder, os.path.join(folder, "sibling.cpp"), "-shared", "-fPIC")
                os.rename(made, os.path.join(folder, "libplugin_OTHER.so"))
            program = "import ctypes, sys; init = ctypes.CDLL(sys.argv[1]).nixl_plugin_init; init.restype = ctypes.c_void_p; print(bool(init()))"
            environment = dict(os.environ, NIXL_PLUGIN_DIR=folder)
            ran = subprocess.run([sys.executable, "-c", program, PLUGIN], env=environment, capture_output=True, text=True)
            return ran.stdout.strip(), ran.stderr

    def test_the_interface_of_the_table_is_accepted(self):
        self.assertEqual(self.outcome(), ("True", ""))

    def test_a_vtable_of_another_size_is_refused_in_words(self):
        accepted, words = self.outcome(("virtual void releaseMemView", "virtual void another() {}\n    virtual void releaseMemView"))
        self.assertEqual(accepted, "False")
        self.assertIn("it has 240 bytes and not 232", words)

    def test_methods_in_another_order_are_refused_in_words(self):
        accepted, words = self.outcome(("getConnInfo", "swapped"), ("getPublicData", "getConnInfo"), ("swapped", "getPublicData"))
        self.assertEqual(accepted, "False")
        self.assertIn("slot 20 is _ZNK17nixlBackendEngine11getConnInfo", words)

    def test_a_method_with_other_parameters_is_refused_in_words(self):
        accepted, words = self.outcome(("getNotifs(notif_list_t &)", "getNotifs(notif_list_t &, int)"))
        self.assertEqual(accepted, "False")
        self.assertIn("slot 25", words)

    def test_an_installation_without_other_plugins_is_refused_in_words(self):
        accepted, words = self.outcome(sibling=False)
        self.assertEqual(accepted, "False")
        self.assertIn("cannot be checked", words)

    def test_the_file_exports_its_two_functions_alone(self):
        listed = subprocess.run(["nm", "-D", "--defined-only", PLUGIN], check=True, capture_output=True, text=True).stdout
        self.assertEqual({line.split()[-1] for line in listed.splitlines()}, {"nixl_plugin_init", "nixl_plugin_fini"})


PLUGIN = ""
