// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/nccl/dynamic_library.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdlib>
#include <utility>

#include "common/error.h"

namespace ddprun::nccl {
namespace {

std::string path_of(void* handle, const std::string& fallback) {
  struct link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr && map->l_name[0] != '\0') {
    return map->l_name;
  }
  return fallback;
}

}  // namespace

DynamicLibrary::DynamicLibrary(void* handle, std::string path)
    : handle_(handle), path_(std::move(path)) {}

DynamicLibrary DynamicLibrary::open(const LibrarySearch& search) {
  const char* chosen = std::getenv(search.override_variable);
  if (chosen != nullptr && chosen[0] != '\0') {
    if (void* handle = dlopen(chosen, RTLD_NOW | RTLD_LOCAL))
      return {handle, path_of(handle, chosen)};
    throw Error(ErrorCode::kUnsupported, std::string(search.override_variable) + "=" + chosen +
                                             " can't be loaded: " + dlerror());
  }
  for (const auto& name : search.names) {
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
  throw Error(ErrorCode::kUnsupported, search.what + " was not found (set " +
                                           search.override_variable +
                                           " to the file if it is elsewhere):" + tried);
}

void* DynamicLibrary::find(const char* symbol) const { return dlsym(handle_, symbol); }

void* DynamicLibrary::require(const char* symbol) const {
  void* found = find(symbol);
  if (found == nullptr) {
    throw Error(ErrorCode::kUnsupported, path_ + " has no function " + symbol);
  }
  return found;
}

}  // namespace ddprun::nccl
