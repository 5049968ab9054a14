; The installer for Windows: for one user, without an administrator. `python3 dev.py package nsis` compiles it.
;
;   PAYLOAD    the folder to install
;   FILES      an include that build.py writes from it: what to install and, file by file, what to remove again
;   VERSION    such as 1.2.3 or 1.3.0rc1
;   NUMBERS    the same as four numbers
;   PUBLISHER  who makes it
;   OUTFILE    the installer to write
;   FAST       if defined, compresses quickly instead of well
;
; Silent: /S installs without starting at login; /S /LOGIN=1 with it; /D=DIR (last, unquoted) chooses the folder.
; uninstall.exe /S removes the program and keeps the user's data; with /DATA=1 it removes them too.

Unicode true
!ifndef PAYLOAD | FILES | VERSION | NUMBERS | PUBLISHER | OUTFILE
  !error "build.py defines PAYLOAD, FILES, VERSION, NUMBERS, PUBLISHER and OUTFILE"
!endif

!include "MUI2.nsh"
!include "FileFunc.nsh"
!include "LogicLib.nsh"
!include "${FILES}"

!define NAME "Lemon Tray"
!define ID "lemon-tray"
!define RUN_KEY "Software\Microsoft\Windows\CurrentVersion\Run"
!define UNINSTALL_KEY "Software\Microsoft\Windows\CurrentVersion\Uninstall\${ID}"

Name "${NAME}"
OutFile "${OUTFILE}"
RequestExecutionLevel user
InstallDir "$LOCALAPPDATA\Programs\${NAME}"
; An upgrade goes where the last one went.
InstallDirRegKey HKCU "${UNINSTALL_KEY}" "InstallLocation"
!ifdef FAST
  SetCompressor zlib
!else
  SetCompressor /SOLID lzma
!endif
SetOverwrite on
ManifestDPIAware true
ShowInstDetails nevershow
ShowUninstDetails nevershow

VIProductVersion "${NUMBERS}"
VIAddVersionKey "ProductName" "${NAME}"
VIAddVersionKey "FileDescription" "${NAME} installer"
VIAddVersionKey "FileVersion" "${VERSION}"
VIAddVersionKey "ProductVersion" "${VERSION}"
VIAddVersionKey "LegalCopyright" "${PUBLISHER}, Apache-2.0"

!define MUI_ABORTWARNING
!define MUI_FINISHPAGE_RUN "$INSTDIR\lemon-tray.exe"
!define MUI_FINISHPAGE_RUN_TEXT "Start ${NAME}"
!insertmacro MUI_PAGE_COMPONENTS
!insertmacro MUI_PAGE_DIRECTORY
!insertmacro MUI_PAGE_INSTFILES
!insertmacro MUI_PAGE_FINISH
!insertmacro MUI_UNPAGE_CONFIRM
!insertmacro MUI_UNPAGE_INSTFILES
!insertmacro MUI_LANGUAGE "English"

; Windows lets nobody write to the file of a program that runs: that tells whether it does. Sets $1 to 1 then.
!macro IS_IN_USE FILE
  ${If} ${FileExists} "${FILE}"
    ClearErrors
    FileOpen $0 "${FILE}" a
    ${If} ${Errors}
      StrCpy $1 1
    ${Else}
      FileClose $0
    ${EndIf}
  ${EndIf}
!macroend

; Ends the app and its workers before their files go: asks it to quit, which gives answers under way some
; seconds, and waits. Only one that cannot be asked, such as a hung one, is ended by force, and only silently;
; a user who looks on is asked to quit it.
!macro WAIT_UNTIL_IT_HAS_ENDED un
Function ${un}LookWhetherItRuns
  StrCpy $1 0
  !insertmacro IS_IN_USE "$INSTDIR\lemon-tray.exe"
  !insertmacro IS_IN_USE "$INSTDIR\lemon-tray-cli.exe"
FunctionEnd

Function ${un}WaitUntilItHasEnded
  Call ${un}LookWhetherItRuns
  ${If} $1 == 0
    Return
  ${EndIf}
  ${IfNot} ${Silent}
    MessageBox MB_OKCANCEL|MB_ICONINFORMATION "${NAME} is running. It will be quit now; answers under way get a few seconds to end." IDOK quit
    Abort
  ${EndIf}
  quit:
  nsExec::Exec /TIMEOUT=40000 '"$INSTDIR\lemon-tray-cli.exe" stop'
  Pop $0
  ; The lock is given back a moment before the process is gone.
  StrCpy $2 0
  ${Do}
    Call ${un}LookWhetherItRuns
    ${If} $1 == 0
      Return
    ${EndIf}
    Sleep 250
    IntOp $2 $2 + 1
  ${LoopUntil} $2 == 20
  ${If} ${Silent}
    ReadEnvStr $3 "USERNAME"
    nsExec::Exec 'taskkill /F /T /IM lemon-tray.exe /FI "USERNAME eq $3"'
    Pop $0
    nsExec::Exec 'taskkill /F /T /IM lemon-tray-cli.exe /FI "USERNAME eq $3"'
    Pop $0
    Sleep 1000
    Call ${un}LookWhetherItRuns
    ${If} $1 == 1
      SetErrorLevel 4
      Abort
    ${EndIf}
    Return
  ${EndIf}
  MessageBox MB_RETRYCANCEL|MB_ICONEXCLAMATION "${NAME} has not ended. Quit it from its icon in the tray, then choose Retry." IDRETRY quit
  Abort
FunctionEnd
!macroend
!insertmacro WAIT_UNTIL_IT_HAS_ENDED ""
!insertmacro WAIT_UNTIL_IT_HAS_ENDED "un."

Section "${NAME}" MAIN
  SectionIn RO
  SetShellVarContext current
  Call WaitUntilItHasEnded
  ; What the last version brought goes first, by its own list; settings and the choice about login stay.
  ${If} ${FileExists} "$INSTDIR\uninstall.exe"
    ClearErrors
    ExecWait '"$INSTDIR\uninstall.exe" /S /UPGRADE=1 _?=$INSTDIR' $0
    ; One that is damaged does not start: then the new files are written over the old.
    ${IfNot} ${Errors}
    ${AndIf} $0 <> 0
      SetErrorLevel 4
      Abort "The installed version could not be removed."
    ${EndIf}
    Delete "$INSTDIR\uninstall.exe"
  ${EndIf}

  !insertmacro INSTALL_PAYLOAD
  SetOutPath "$INSTDIR"
  WriteUninstaller "$INSTDIR\uninstall.exe"
  CreateShortcut "$SMPROGRAMS\${NAME}.lnk" "$INSTDIR\lemon-tray.exe"

  WriteRegStr HKCU "${UNINSTALL_KEY}" "DisplayName" "${NAME}"
  WriteRegStr HKCU "${UNINSTALL_KEY}" "DisplayVersion" "${VERSION}"
  WriteRegStr HKCU "${UNINSTALL_KEY}" "DisplayIcon" "$INSTDIR\lemon-tray.exe"
  WriteRegStr HKCU "${UNINSTALL_KEY}" "Publisher" "${PUBLISHER}"
  WriteRegStr HKCU "${UNINSTALL_KEY}" "InstallLocation" "$INSTDIR"
  WriteRegStr HKCU "${UNINSTALL_KEY}" "UninstallString" '"$INSTDIR\uninstall.exe"'
  WriteRegStr HKCU "${UNINSTALL_KEY}" "QuietUninstallString" '"$INSTDIR\uninstall.exe" /S'
  WriteRegDWORD HKCU "${UNINSTALL_KEY}" "NoModify" 1
  WriteRegDWORD HKCU "${UNINSTALL_KEY}" "NoRepair" 1
  WriteRegDWORD HKCU "${UNINSTALL_KEY}" "EstimatedSize" ${PAYLOAD_KIB}
SectionEnd

; The app's own setting writes the same value, so that it shows what was chosen here.
Section /o "Start at login" LOGIN
  WriteRegStr HKCU "${RUN_KEY}" "${NAME}" '"$INSTDIR\lemon-tray.exe" "--hidden"'
SectionEnd

!insertmacro MUI_FUNCTION_DESCRIPTION_BEGIN
  !insertmacro MUI_DESCRIPTION_TEXT ${MAIN} "The program, and an entry in the start menu."
  !insertmacro MUI_DESCRIPTION_TEXT ${LOGIN} "Start in the tray when you log in. The settings can change this later."
!insertmacro MUI_FUNCTION_DESCRIPTION_END

Function .onInit
  ${GetParameters} $0
  ${GetOptions} $0 "/LOGIN=" $1
  ${If} $1 == "1"
    SectionGetFlags ${LOGIN} $2
    IntOp $2 $2 | ${SF_SELECTED}
    SectionSetFlags ${LOGIN} $2
  ${EndIf}
FunctionEnd

Section "Uninstall"
  SetShellVarContext current
  Call un.WaitUntilItHasEnded
  !insertmacro REMOVE_PAYLOAD
  ${GetParameters} $0
  ${GetOptions} $0 "/UPGRADE=" $1
  ${If} $1 == "1"
    Return
  ${EndIf}

  Delete "$INSTDIR\uninstall.exe"
  ; Only if nothing of the user's is in it.
  RMDir "$INSTDIR"
  Delete "$SMPROGRAMS\${NAME}.lnk"
  DeleteRegValue HKCU "${RUN_KEY}" "${NAME}"
  DeleteRegKey HKCU "${UNINSTALL_KEY}"

  ${GetOptions} $0 "/DATA=" $1
  ${If} $1 != "1"
    MessageBox MB_YESNO|MB_ICONQUESTION|MB_DEFBUTTON2 "Remove your settings, policies, log and downloaded models too?$\r$\n$\r$\n$LOCALAPPDATA\${ID}" /SD IDNO IDYES data
    Return
  ${EndIf}
  data:
  RMDir /r "$LOCALAPPDATA\${ID}"
  RMDir /r "$LOCALAPPDATA\Temp\${ID}"
SectionEnd
