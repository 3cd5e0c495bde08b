"use strict";(self.rspackChunkdjinn_lab=self.rspackChunkdjinn_lab||[]).push([[700],{646(e,n,r){var t=r(601),o=r.n(t),a=r(314),i=(r.n(a))()(o());i.push([e.id,`.djinn-sidebar {
  background: var(--jp-layout-color1);
  color: var(--jp-ui-font-color1);
  font-size: var(--jp-ui-font-size1);
  overflow-y: auto;
  padding: 8px 12px;
}

.djinn-sidebar h3 {
  font-size: var(--jp-ui-font-size1);
  margin: 16px 0 4px;
}

.djinn-sidebar p,
.djinn-sidebar ul {
  list-style: none;
  margin: 4px 0;
  padding: 0;
}

.djinn-sidebar li {
  border-bottom: 1px solid var(--jp-border-color2);
  overflow-wrap: anywhere;
  padding: 6px 0;
}

.djinn-sidebar a {
  color: var(--jp-content-link-color);
}

.djinn-sidebar progress {
  accent-color: var(--jp-brand-color1);
  height: 6px;
  margin-top: 4px;
  width: 100%;
}

.djinn-detail {
  color: var(--jp-ui-font-color2);
}

.djinn-stop {
  margin-top: 4px;
}

.djinn-status {
  background: none;
  border: none;
  color: inherit;
  cursor: pointer;
  font: inherit;
  padding: 0 6px;
}

.djinn-captured .jp-InputArea-prompt::after {
  color: var(--jp-brand-color1);
  content: 'pool';
  display: block;
  font-size: 80%;
  line-height: 1;
}
`,""]),r.d(n,{},{A:i})},314(e){e.exports=function(e){var n=[];return n.toString=function(){return this.map(function(n){var r="",t=void 0!==n[5];return n[4]&&(r+="@supports (".concat(n[4],") {")),n[2]&&(r+="@media ".concat(n[2]," {")),t&&(r+="@layer".concat(n[5].length>0?" ".concat(n[5]):""," {")),r+=e(n),t&&(r+="}"),n[2]&&(r+="}"),n[4]&&(r+="}"),r}).join("")},n.i=function(e,r,t,o,a){"string"==typeof e&&(e=[[null,e,void 0]]);var i={};if(t)for(var c=0;c<this.length;c++){var s=this[c][0];null!=s&&(i[s]=!0)}for(var p=0;p<e.length;p++){var d=[].concat(e[p]);t&&i[d[0]]||(void 0!==a&&(void 0===d[5]||(d[1]="@layer".concat(d[5].length>0?" ".concat(d[5]):""," {").concat(d[1],"}")),d[5]=a),r&&(d[2]&&(d[1]="@media ".concat(d[2]," {").concat(d[1],"}")),d[2]=r),o&&(d[4]?(d[1]="@supports (".concat(d[4],") {").concat(d[1],"}"),d[4]=o):d[4]="".concat(o)),n.push(d))}},n}},601(e){e.exports=function(e){return e[1]}},72(e){var n=[];function r(e){for(var r=-1,t=0;t<n.length;t++)if(n[t].identifier===e){r=t;break}return r}function t(e,t){for(var o={},a=[],i=0;i<e.length;i++){var c=e[i],s=t.base?c[0]+t.base:c[0],p=o[s]||0,d="".concat(s," ").concat(p);o[s]=p+1;var u=r(d),l={css:c[1],media:c[2],sourceMap:c[3],supports:c[4],layer:c[5]};if(-1!==u)n[u].references++,n[u].updater(l);else{var f=function(e,n){var r=n.domAPI(n);return r.update(e),function(n){n?(n.css!==e.css||n.media!==e.media||n.sourceMap!==e.sourceMap||n.supports!==e.supports||n.layer!==e.layer)&&r.update(e=n):r.remove()}}(l,t);t.byIndex=i,n.splice(i,0,{identifier:d,updater:f,references:1})}a.push(d)}return a}e.exports=function(e,o){var a=t(e=e||[],o=o||{});return function(e){e=e||[];for(var i=0;i<a.length;i++){var c=r(a[i]);n[c].references--}for(var s=t(e,o),p=0;p<a.length;p++){var d=r(a[p]);0===n[d].references&&(n[d].updater(),n.splice(d,1))}a=s}}},659(e){var n={};e.exports=function(e,r){var t=function(e){if(void 0===n[e]){var r=document.querySelector(e);if(window.HTMLIFrameElement&&r instanceof window.HTMLIFrameElement)try{r=r.contentDocument.head}catch(e){r=null}n[e]=r}return n[e]}(e);if(!t)throw Error("Couldn't find a style target. This probably means that the value for the 'insert' parameter is invalid.");t.appendChild(r)}},540(e){e.exports=function(e){var n=document.createElement("style");return e.setAttributes(n,e.attributes),e.insert(n,e.options),n}},56(e,n,r){e.exports=function(e){var n=r.nc;n&&e.setAttribute("nonce",n)}},825(e){e.exports=function(e){if("u"<typeof document)return{update:function(){},remove:function(){}};var n=e.insertStyleElement(e);return{update:function(r){var t,o,a;t="",r.supports&&(t+="@supports (".concat(r.supports,") {")),r.media&&(t+="@media ".concat(r.media," {")),(o=void 0!==r.layer)&&(t+="@layer".concat(r.layer.length>0?" ".concat(r.layer):""," {")),t+=r.css,o&&(t+="}"),r.media&&(t+="}"),r.supports&&(t+="}"),(a=r.sourceMap)&&"u">typeof btoa&&(t+="\n/*# sourceMappingURL=data:application/json;base64,".concat(btoa(unescape(encodeURIComponent(JSON.stringify(a))))," */")),e.styleTagTransform(t,n,e.options)},remove:function(){var e;null===(e=n).parentNode||e.parentNode.removeChild(e)}}}},113(e){e.exports=function(e,n){if(n.styleSheet)n.styleSheet.cssText=e;else{for(;n.firstChild;)n.removeChild(n.firstChild);n.appendChild(document.createTextNode(e))}}},959(e,n,r){var t=r(72),o=r.n(t),a=r(825),i=r.n(a),c=r(659),s=r.n(c),p=r(56),d=r.n(p),u=r(540),l=r.n(u),f=r(113),v=r.n(f),h=r(646),m={};m.styleTagTransform=v(),m.setAttributes=d(),m.insert=s().bind(null,"head"),m.domAPI=i(),m.insertStyleElement=l(),o()(h.A,m),h.A&&h.A.locals&&h.A.locals}}]);