"""conan create packaging/conan: the headers of this folder, and the target cdp::cdp for CMake."""
import os
import re

from conan import ConanFile
from conan.tools.files import copy, load


class Cdp(ConanFile):
    name = "cdp"
    description = "data-parallel training in C, as header files"
    license = "MIT-0 OR Unlicense"
    package_type = "header-library"
    settings = "os"
    no_copy_source = True

    def set_version(self):
        text = load(self, os.path.join(self.recipe_folder, "..", "..", "cdp.h"))
        self.version = ".".join(re.findall(r"#define CDP_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", text))

    def export_sources(self):
        top = os.path.join(self.recipe_folder, "..", "..")
        for pattern in ("cdp*.h", "LICENSE"):
            copy(self, pattern, top, self.export_sources_folder, excludes="*/*")

    def package(self):
        copy(self, "cdp*.h", self.source_folder, os.path.join(self.package_folder, "include"))
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))

    def package_id(self):
        self.info.clear()

    def package_info(self):
        self.cpp_info.bindirs = []
        self.cpp_info.libdirs = []
        windows = str(self.settings.os) == "Windows"
        self.cpp_info.system_libs = ["ws2_32", "bcrypt"] if windows else ["pthread", "m"]
