// SPDX-License-Identifier: Apache-2.0
#include "agent/observe/observer.h"

#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "agent/python_texts.h"
#include "common/error.h"

namespace ddprun::agent {

std::string observer_folder(const std::string& socket_directory) {
  return socket_directory + "/observe";  // warm_helper.py uses this name, too
}

std::string put_observer(const std::string& socket_directory) {
  const std::string folder = observer_folder(socket_directory);
  if (folder.find(':') != std::string::npos) {
    throw Error(ErrorCode::kSystem, folder + " has a colon, and PYTHONPATH can't have that");
  }
  if (::mkdir(folder.c_str(), S_IRWXU) != 0) throw_system_error("mkdir " + folder, errno);
  std::ofstream file(folder + "/sitecustomize.py");
  file << kObserverText;
  file.close();
  if (file) return folder;
  const int error = errno;
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  throw_system_error("writing " + folder, error);
}

}  // namespace ddprun::agent
