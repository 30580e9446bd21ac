// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/nccl/loader.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "common/throw_error.h"

namespace ddprun::nccl {
namespace {

std::string path_of(void* handle, const std::string& fallback) {
  struct link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr && map->l_name[0] != '\0') {
    return map->l_name;
  }
  return fallback;
}

// Returns "libnccl" for "libnccl.so.2".
std::string_view stem_of(std::string_view name) { return name.substr(0, name.find(".so")); }

// True for "/x/libnccl.so.2", and for "/x/libnccl-1a2b3c4d.so.2" as packages rename it; false for
// "libnccl-net.so".
bool is_copy(std::string_view path, std::string_view stem) {
  path.remove_prefix(path.rfind('/') + 1);  // npos + 1 is 0
  if (!path.starts_with(stem)) return false;
  path.remove_prefix(stem.size());
  constexpr std::size_t kHashSize = 8;
  const std::string_view hash = path.substr(0, kHashSize + 1);
  if (hash.size() == kHashSize + 1 && hash[0] == '-' &&
      hash.find_first_not_of("0123456789abcdef", 1) == hash.npos) {
    path.remove_prefix(hash.size());
  }
  return path.starts_with(".so");
}

// Returns the paths of libraries that are loaded under one of the names, also with a hash in it, in
// the order of loading. A name with a hash is the library's soname, too, so dlopen doesn't find it
// by the plain name.
std::vector<std::string> loaded_copies(const std::vector<std::string>& names) {
  struct Found {
    const std::vector<std::string>& names;
    std::vector<std::string> paths;
  } found{names, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        auto& [wanted, paths] = *static_cast<Found*>(data);
        const std::string_view path = info->dlpi_name;
        const auto is_this = [&](const std::string& name) { return is_copy(path, stem_of(name)); };
        if (std::ranges::any_of(wanted, is_this)) paths.emplace_back(path);
        return 0;
      },
      &found);
  return found.paths;
}

}  // namespace

DynamicLibrary DynamicLibrary::open(const LibrarySearch& search) {
  const std::vector<std::string> copies = loaded_copies(search.names);
  const char* chosen = std::getenv(search.override_variable);
  if (chosen != nullptr && chosen[0] != '\0') {
    if (void* handle = dlopen(chosen, RTLD_NOW | RTLD_NOLOAD)) {
      return {handle, path_of(handle, chosen)};
    }
    const std::string setting = std::string(search.override_variable) + "=" + chosen;
    if (!copies.empty() && !search.may_be_second) {
      throw_error(ErrorCode::kUnsupported, setting, " can't be used beside ", copies.front(),
                  ", which this process has loaded already: unset it, or start the program "
                  "with LD_PRELOAD=",
                  chosen, " instead");
    }
    // RTLD_DEEPBIND isn't used: the library would mix a preloaded malloc with libc's free.
    if (void* handle = dlopen(chosen, RTLD_NOW | RTLD_LOCAL))
      return {handle, path_of(handle, chosen)};
    throw_error(ErrorCode::kUnsupported, setting, " can't be loaded: ", dlerror());
  }
  std::vector<std::string> loaded = search.names;
  loaded.insert(loaded.end(), copies.begin(), copies.end());
  for (const auto& name : loaded) {
    if (void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_NOLOAD)) {
      return {handle, path_of(handle, name)};
    }
  }
  std::vector<std::string> files = search.names;
  for (const auto& folder : search.folders) {
    for (const auto& name : search.names) files.push_back(folder + "/" + name);
  }
  std::string tried;
  for (const auto& file : files) {
    if (void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      return {handle, path_of(handle, file)};
    }
    tried += "\n  " + std::string(dlerror());
  }
  throw_error(ErrorCode::kUnsupported, search.what, " was not found (set ",
              search.override_variable, " to the file if it is elsewhere):", tried);
}

void* DynamicLibrary::find(const char* symbol) const { return dlsym(handle_, symbol); }

void* DynamicLibrary::require(const char* symbol) const {
  void* found = find(symbol);
  if (found == nullptr) throw_error(ErrorCode::kUnsupported, path_, " has no function ", symbol);
  return found;
}

}  // namespace ddprun::nccl
